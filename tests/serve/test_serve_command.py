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
import typer
from fastapi import FastAPI
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from poise.errors import InvalidOptionError
from poise.inference.classifier import Classifier
from poise.serve.http import uvicorn_server
from poise.serve.http.app import create_app
from poise.serve.http.uvicorn_server import Address, DrainingServer, check_exposure
from poise.serve.settings import ServiceSettings
from tests.serve.live import SOON, Live, body, eventually, png, settings

COMMAND = [sys.executable, "-m", "poise", "serve", "--model", "tiny", "--device", "cpu", "--port", "0"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_sigterm_loses_no_accepted_request() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1]), "POISE_SERVE_BATCH_WAIT": "5"}
    process = subprocess.Popen([*COMMAND, "--views", "4"], stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        ready = re.fullmatch(r"poise: ready at http://127.0.0.1:(\d+) with the model tiny\n", line)
        assert ready, line
        live = Live(FastAPI(), int(ready[1]))
        assert live.get("/ready").status_code == 200
        assert live.get("/v1/models", headers={"Host": f"attacker.example:{live.port}"}).status_code == 421
        sent = json.dumps(body(png(0))).encode()
        head = f"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(sent)}"
        head += "\r\nContent-Type: application/json"
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
        assert re.fullmatch(r"poise: draining, \d requests?\npoise: stopped\n", process.stderr.read())
        with pytest.raises(ConnectionRefusedError):
            live.socket()
    finally:
        process.kill()
        process.communicate()


def test_a_second_sigterm_ends_the_server_at_once() -> None:
    server = DrainingServer(create_app(settings()), Address(port=0))
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit


def test_a_failed_start_is_one_error() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1])}
    command = [*COMMAND, "--labels", "cat,cat"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=SOON)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("poise: Duplicate labels")


def test_labels_and_options_of_a_calibration_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [png(seed) for seed in range(20)]
    classify = Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu", views=4)
    classify.calibrate(images, ["cat", "dog"] * 10, coverage=[0.8]).save(tmp_path / "calibration.json")
    (tmp_path / "labels.txt").write_text("dog\ncat\n")
    served: list[ServiceSettings] = []
    monkeypatch.setattr(uvicorn_server, "run", lambda app, address, **say: served.append(app.state.service.settings))
    known = ["serve", "--calibration", str(tmp_path / "calibration.json")]
    for more in ([], ["--labels-file", str(tmp_path / "labels.txt"), "--views", "2"]):
        assert CliRunner().invoke(app, [*known, *more]).exit_code == 0
    assert [(row.model, row.labels, row.methods, row.views) for row in served] == [
        ("tiny", ("cat", "dog"), ("zero-shot",), 4),
        ("tiny", ("dog", "cat"), ("zero-shot",), 2),
    ]


def test_what_demo_and_serve_share_is_the_same_option() -> None:
    serve, demo = (typer.main.get_command(app).commands[name].params for name in ("serve", "demo"))  # type: ignore[attr-defined]
    rows = {row.name: (row.opts, row.default, row.help) for row in serve if row.name != "method"}
    shared = {row.name: (row.opts, row.default, row.help) for row in demo if row.name in rows}
    assert shared.items() <= rows.items()
    assert {row.name for row in demo} - shared.keys() == {"method", "runs", "browser"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_served_with_a_token_only(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no token is set"):
        check_exposure(host, "", allow_anonymous=False)
    for anonymous in (False, True):
        with pytest.raises(InvalidOptionError, match="the token has 5 characters"):
            check_exposure(host, "token", allow_anonymous=anonymous)
    check_exposure("127.0.0.1", "token", allow_anonymous=False)
    check_exposure(host, 16 * "x", allow_anonymous=False)
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
)
def test_what_a_server_is_not_started_with(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--device", "cpu", *arguments])
    assert message in str(result.exception)


@pytest.mark.parametrize("given", ["99999", "-1", "tcp://10.0.0.1:80", "eighty\x1b"])
def test_what_is_no_port(given: str) -> None:
    result = CliRunner().invoke(app, ["serve"], env={"POISE_SERVE_PORT": given, "COLUMNS": "400"})
    assert result.exit_code == 2
    assert given.replace("\x1b", "\\u001b") in result.output.replace("\\\\", "\\")
    assert "from 0 to 65535" in result.output
    assert ("enableServiceLinks" in result.output) == ("://" in given)


def test_misspelled_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "run", lambda app, address, **say: None)
    env = {"POISE_SERVE_MAXVIEWS": "8", "POISE_SERVE_TOKEN": "x", "POISE_SERVE_VIEWS": "2", "POISE_SERVE_ADDRESS": ""}
    links = {"POISE_SERVE_SERVICE_HOST": "10.0.0.1", "POISE_SERVE_PORT_80_TCP_ADDR": "10.0.0.1"}
    result = CliRunner().invoke(app, ["serve", "--model", "tiny"], env={**env, **links})
    assert result.stderr == (
        "poise: Unknown variable 'POISE_SERVE_MAXVIEWS'. Did you mean 'POISE_SERVE_MAX_VIEWS'? It is ignored.\n"
    )
    other = CliRunner().invoke(
        app, ["serve", "--model", "tiny"], env={"POISE_SERVE_THREADS": "2"}
    )  # it is POISE_THREADS
    assert "Unknown variable 'POISE_SERVE_THREADS'" in other.stderr


def test_a_port_in_use_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = CliRunner().invoke(app, ["serve", "--port", str(other.getsockname()[1]), "--model", "tiny"])
    assert "can't listen" in str(result.exception)
