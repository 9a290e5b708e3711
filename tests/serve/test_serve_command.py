"""`poise serve` as a process: it stops without losing a request, and refuses what would be unsafe."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi import FastAPI
from serve.live import Live, body, eventually, png
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from poise.errors import InvalidOptionError
from poise.serve.uvicorn_server import check_exposure

COMMAND = [sys.executable, "-m", "poise", "serve", "--model", "tiny", "--device", "cpu", "--port", "0"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_sigterm_loses_no_accepted_request() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1]), "POISE_SERVE_BATCH_WAIT": "5"}
    process = subprocess.Popen([*COMMAND, "--views", "4"], stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr is not None
        listening = re.search(r"http://127.0.0.1:(\d+)", process.stderr.readline())
        assert listening
        live = Live(FastAPI(), int(listening[1]))
        eventually(lambda: process.poll() is not None or live.get("/ready").status_code == 200)
        sent = json.dumps(body(png(0))).encode()
        head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}"
        with ThreadPoolExecutor(6) as pool, live.socket() as late:
            late.sendall(head.encode() + b"\r\n\r\n" + sent[:-1])  # not complete, so not accepted
            calls = [pool.submit(live.post, "/v1/classify", json=body(png(n))) for n in range(6)]
            eventually(lambda: "poise_queue_items 6.0" in live.get("/metrics").text)
            process.send_signal(signal.SIGTERM)
            answers = [call.result() for call in calls]
            late.sendall(sent[-1:])
            refused = late.recv(65_536)
        assert [answer.status_code for answer in answers] == [200] * 6
        assert not refused or refused.startswith(b"HTTP/1.1 503")
        assert process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            live.socket()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_served_with_a_token_only(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no token is set"):
        check_exposure(host, "", allow_anonymous=False)
    check_exposure(host, "token", allow_anonymous=False)
    check_exposure(host, "", allow_anonymous=True)
    check_exposure("127.0.0.1", "", allow_anonymous=False)
    check_exposure("localhost", "", allow_anonymous=False)
    (tmp_path / "token").write_text(" \n")
    result = CliRunner().invoke(app, ["serve", "--host", host, "--token-file", str(tmp_path / "token")])
    assert isinstance(result.exception, InvalidOptionError)
    assert "contains no token" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-views", "0"], "The limit of views is 0"),
        (["--max-body", "300000000"], "all requests together may have 256,000,000"),
        (["--max-pixels", "60000000"], "poise reads images up to 50,000,000"),
        (["--coverage", "0.9"], "need a calibration"),
        (["--calibration", "missing.json"], "missing.json"),
        (["--host", "203.0.113.7", "--allow-anonymous"], "can't listen"),
        (["--method", "tda", "--model", "tiny"], "depend on the images before"),
        (["--views", "65", "--model", "tiny"], "accepts 64"),
        (["--token-file", "missing.txt"], "can't be read"),
    ],
)  # fmt: skip
def test_what_a_server_is_not_started_with(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--device", "cpu", *arguments])
    assert message in str(result.exception)


def test_a_port_in_use_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = CliRunner().invoke(app, ["serve", "--port", str(other.getsockname()[1]), "--model", "tiny"])
    assert "can't listen" in str(result.exception)
