"""Connects to a Ray cluster, or explains why that is not possible."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from poise import plugins
from poise.errors import ClusterUnavailableError, InvalidOptionError, MissingDependencyError, reason_of

_TIMEOUT = 5  # seconds to reach the address; Ray itself would try for minutes


def connect(address: str = "") -> Any:
    """Return the module ``ray``, connected to ``address``; without an address, Ray is started on this machine."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError.of("The engine 'ray'", "ray", "ray") from None
    # Ray prints messages about dead workers to stdout, between our rows, and has no option to disable them. In versions
    # where this private attribute has another name, setting it has no effect.
    ray._private.worker._worker_logs_enabled = False
    if ray.is_initialized():
        return ray
    if address not in ("", "auto", "local"):
        _check_address(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns unless it is set
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # whose lines would come between ours
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    if address and (variables := plugins.variables()):  # a cluster that runs already does not have them
        options["runtime_env"] = {"env_vars": variables}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # no cluster, or another version of Ray or Python; Ray also raises plain Exceptions
        action = f"connect to the Ray cluster at '{address}'" if address else "start Ray on this machine"
        raise ClusterUnavailableError(
            f"Cannot {action}: {reason_of(error)}.",
            hint="Start a cluster with `ray start --head`. All machines need the same versions of Python and Ray and, "
            "with RAY_AUTH_MODE=token, the same token; see docs/cluster.md.",
        ) from error
    return ray


def is_gpu(device: str) -> bool:
    """Return whether each worker needs a GPU. Ray assigns the GPUs: a worker sees only the one it was given."""
    kind, _, index = device.partition(":")
    if index not in ("", "0"):
        raise InvalidOptionError(
            f"The device '{device}' is not supported with the engine 'ray'.",
            hint="Use cuda: Ray assigns one GPU to each worker. CUDA_VISIBLE_DEVICES for `ray start` restricts them.",
        )
    return kind == "cuda"


def _check_address(address: str) -> None:
    """Reject addresses that Ray does not support, or to which it would try to connect for minutes."""
    if address.startswith("ray://"):
        raise InvalidOptionError(
            f"'{address}' is a Ray Client address, which is not supported.",
            hint="Use --address auto on a machine of the cluster, or `ray job submit` from elsewhere.",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidOptionError(
            f"The address '{address}' is not valid.", hint="Use auto or host:port, for example head:6379."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnavailableError(
            f"No Ray cluster is reachable at '{address}': {reason_of(error)}.",
            hint="Start the head node with `ray start --head --port 6379`, then use its host:port or auto.",
        ) from None
