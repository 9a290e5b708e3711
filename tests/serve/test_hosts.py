"""The Host header: a web page can make its own name an address of this machine, but can't choose this header."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poise.errors import InvalidOptionError
from poise.serve.http.uvicorn_server import allowed_hosts
from poise.serve.service import Service
from tests.serve.live import Live, body, png, running, settings


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    hosts = allowed_hosts("127.0.0.1", ["Poise.Test", "2001:db8::1"])
    with running(Service(settings(hosts=hosts, token="secret"))) as server:
        yield server


GOOD = [
    "localhost",
    "LOCALHOST:80",
    "127.0.0.1:8000",
    "[::1]",
    "[::1]:8000",
    "poise.test",
    "poise.test.:1",
    "[2001:db8::1]:9",
]
BAD = [
    "attacker.example",
    "attacker.example:8000",
    "localhost.attacker.example",
    "127.0.0.1.attacker.example",
    "[::2]",
    "[::1].attacker.example",
    "x@localhost",
    "localhost,attacker.example",
    "0.0.0.0",
    "",
]


@pytest.mark.parametrize("host", GOOD)
def test_names_of_this_machine_are_answered(live: Live, host: str) -> None:
    headers = {"Host": host, "Authorization": "Bearer secret"}
    assert live.get("/v1/models", headers=headers).status_code == 200
    assert live.post("/v1/classify", json=body(png(0), methods=["zero-shot"]), headers=headers).status_code == 200


@pytest.mark.parametrize("host", BAD)
def test_other_names_are_refused_whatever_is_asked(live: Live, host: str) -> None:
    for headers in ({"Host": host}, {"Host": host, "Authorization": "Bearer secret"}):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/no-such-path"):
            answer = live.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "wrong_host")
    assert live.post("/v1/classify", json=body(png(0)), headers={"Host": host}).status_code == 421
    assert live.get("/ready", headers={"Host": host}).status_code == 200  # an orchestrator may use any address


def test_which_names_are_allowed() -> None:
    here = ("localhost", "127.0.0.1", "[::1]")
    assert allowed_hosts("127.0.0.1", []) == here
    assert allowed_hosts("localhost", ["a.test"]) == (*here, "a.test")
    assert allowed_hosts("127.0.0.2", []) == (*here, "127.0.0.2")
    assert allowed_hosts("0.0.0.0", []) == ()  # it is not known how other machines call this one
    assert allowed_hosts("0.0.0.0", ["a.test"]) == (*here, "0.0.0.0", "a.test")
    for name in ("a.test:80", "https://a.test", "", "*", "a b"):
        with pytest.raises(InvalidOptionError, match="without scheme and port"):
            allowed_hosts("127.0.0.1", [name])
