"""The command `poise` for printed shell blocks: a client of a process that has imported everything, and forks.

A new interpreter takes three seconds to import torch; a fork takes none, and a shell sees an ordinary command.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from pathlib import Path

from PIL import Image

from poise import plugins

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = {{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(server.recv(8) or 1))
"""
# What commands import when they are run, so that it is imported once and not in each fork.
LATE = (
    "poise.evaluate.run",
    "poise.report.page.build",
    "poise.report.tables.results",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic.type_adapter",
    "scipy.special",
    "sklearn.manifold",
)


def write_client(folder: Path, address: Path) -> None:
    """Write the executable `poise` into ``folder``."""
    client = folder / "poise"
    client.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    client.chmod(0o755)


def serve(address: str) -> None:
    """Answer each client in a fork of this process, until the process is terminated."""
    import torch

    from poise import Classifier
    from poise.cli import main

    for late in LATE:
        importlib.import_module(late)
    torch.set_num_threads(1)
    for model in ("tiny", "pocket"):  # imports the rest, by a first use
        Classifier(["cat", "dog"], model=model, views=2, device="cpu").predict_proba([Image.new("RGB", (32, 32))])
    gc.freeze()  # otherwise each fork looks through all that is imported, which copies it
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        running: set[int] = set()
        while True:
            client, _ = listening.accept()
            running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
            if (pid := os.fork()) == 0:
                listening.close()
                torch.set_num_threads(1)  # makes torch's thread pool anew, which several threads can't do at once
                os._exit(_answer(client, main))
            running.add(pid)
            client.close()


def _answer(client: socket.socket, main) -> int:
    request, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 3)
    told, code = json.loads(request), 1
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)  # file or pipe
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = told["argv"]
    plugins.load = plugins.Loader()  # as in a new process, by its variables
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    client.send(str(code).encode())
    return code


if __name__ == "__main__":
    serve(sys.argv[1])
