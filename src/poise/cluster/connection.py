"""The module ``ray``, connected to a cluster, or a message that says why not."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from poise.errors import ClusterUnavailableError, InvalidOptionError, MissingDependencyError

_REACHABLE_WITHIN = 5  # seconds; Ray itself tries for minutes before it says that nobody is there


def connect(address: str = "") -> Any:
    """The module ``ray``, connected to ``address``; without one, to a Ray of this machine's own."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError.of("The engine 'ray'", "ray", "ray") from None
    # Ray prints its notices of dead workers on stdout, among the rows, and has no option for it. Where a version knows
    # another name for this switch, setting it does nothing.
    ray._private.worker._worker_logs_enabled = False
    if ray.is_initialized():
        return ray
    if address not in ("", "auto", "local"):
        _check_address(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns as long as nobody chooses
    own = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:  # nobody there; another version of Ray or Python
        place = f"the Ray cluster at '{address}'" if address else "a Ray of this machine's own"
        raise ClusterUnavailableError(
            f"Can't use {place}: {' '.join(str(error).split()).rstrip('.')}.",
            hint="Start one with `ray start --head`. All machines need the same versions of Python and Ray and, with "
            "RAY_AUTH_MODE=token, the same token: see docs/cluster.md.",
        ) from error
    return ray


def is_gpu(device: str) -> bool:
    """Whether the processes need a GPU each. Which one it is, Ray says: each process sees its own alone."""
    kind, _, number = device.partition(":")
    if number not in ("", "0"):
        raise InvalidOptionError(
            f"The device '{device}' was given with the engine 'ray'.",
            hint="Give cuda: Ray gives each worker a GPU of its own. CUDA_VISIBLE_DEVICES for `ray start` limits them.",
        )
    return kind == "cuda"


def _check_address(address: str) -> None:
    """Refuse at once what Ray would try for minutes, or not understand."""
    if address.startswith("ray://"):
        raise InvalidOptionError(
            f"'{address}' is an address of Ray Client, which is not supported.",
            hint="On a machine of the cluster give --address auto; from elsewhere use `ray job submit`.",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidOptionError(
            f"The address '{address}' is not accepted.", hint="Give auto, or host:port, as head:6379."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHABLE_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnavailableError(
            f"Nobody answers at '{address}': {error}.",
            hint="Start the head node with `ray start --head --port 6379` and give its host and port, or auto.",
        ) from None
