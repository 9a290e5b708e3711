"""What the page is mounted with: nothing is sent, shared or kept."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from gradio.exceptions import InvalidPathError
from typer.testing import CliRunner

import poise
from poise.cli.app import app as command
from poise.demo import mount
from poise.demo.calls import Call, in_curl
from poise.errors import InvalidOptionError, MissingDependencyError
from poise.options import Options
from poise.serve.http import uvicorn_server
from poise.serve.http.app import create_app
from poise.serve.settings import ServiceSettings


@pytest.fixture(autouse=True)
def loops(monkeypatch) -> Iterator[None]:
    """Close the event loops that gradio makes and leaves open."""
    made, make = [], asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(make()) or made[-1])
    yield
    asyncio.set_event_loop(None)
    for loop in made:
        loop.close()


def app(**settings) -> FastAPI:
    return create_app(ServiceSettings(model="tiny", device="cpu", views=4, **settings))


def gradio_of(made: FastAPI, path: str) -> FastAPI:
    return next(route.app for route in made.routes if getattr(route, "path", None) == path.rstrip("/"))


@pytest.mark.parametrize("path", ["/", "/demo"])
def test_telemetry_history_and_errors_are_off(path: str) -> None:
    made = mount(app(), path=path)
    blocks = gradio_of(made, path).get_blocks()
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert not blocks.analytics_enabled
    assert not blocks.run_history
    assert not blocks.show_error
    assert not blocks.share
    assert not blocks.ssr_mode
    assert not blocks.mcp_server
    assert not blocks.enable_monitoring
    assert blocks.max_file_size == 20_000_000
    assert blocks.delete_cache == (600, 3600)
    assert all(fn.api_visibility != "public" for fn in blocks.fns.values())


def test_the_api_keeps_its_paths_beside_the_page() -> None:
    with TestClient(mount(app(), path="/"), base_url="http://127.0.0.1") as client:
        assert client.get("/live").json()["status"] == "alive"
        page = client.get("/")
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "poise" in page.text
        etc = client.get("/gradio_api/file=/etc/passwd")
        assert etc.status_code in {403, 404}


SECRET = "what nobody may read"


def test_requests_can_t_name_files_or_addresses(tmp_path: Path, monkeypatch) -> None:
    """Requests that are not the page's: gradio would copy the file into its cache, from where it can be downloaded."""
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    monkeypatch.chdir(tmp_path)
    with TestClient(mount(app(), path="/"), base_url="http://127.0.0.1") as client:
        for at, named in enumerate((str(secret), "secret.txt", "http://127.0.0.1:9/secret.txt")):
            file = {"path": named, "meta": {"_type": "gradio.FileData"}}
            for image, labels in ((file, "cat, dog"), (None, file)):
                asked = {"data": [image, labels, [], "", 4, 0, False], "fn_index": 0, "session_hash": f"{at} {labels}"}
                assert client.post("/gradio_api/queue/join", json=asked).status_code == 200
                said = client.get("/gradio_api/queue/data", params={"session_hash": asked["session_hash"]}).text
                assert '"success":false' in said
                assert "secret.txt" not in said
    assert not [path for path in (tmp_path / "uploads").rglob("*") if path.is_file() and SECRET in path.read_text()]


def test_components_fetch_no_addresses() -> None:
    for block in gradio_of(mount(app()), "/demo").get_blocks().blocks.values():
        with pytest.raises(InvalidPathError, match="Addresses"):
            asyncio.run(block.async_move_resource_to_block_cache("https://example.com/a.png"))


def test_a_server_with_a_token_has_no_page() -> None:
    with pytest.raises(InvalidOptionError, match="token"):
        mount(app(token="secret"))


def test_runs_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="not a folder"):
        mount(app(), runs=tmp_path / "missing")


def test_a_missing_gradio_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingDependencyError, match="extra 'demo'"):
        mount(app())


def test_help_does_not_import_gradio() -> None:
    code = (
        "import sys; sys.argv = ['poise', 'demo', '--help']\n"
        "from poise.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'gradio', 'fastapi'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--runs" in done.stdout


def test_the_shown_http_call_gives_the_answer_of_the_api(image: bytes) -> None:
    """As curl would send it; test_browser.py runs curl itself."""
    options = Options(labels=("cat", "it's; <b>"), method=("zero-shot",), views=4, seed=1, template="an {}.")
    call = Call("a.png", options)
    words = shlex.split(in_curl(call))
    fields = [word.split("=", 1) for at, word in enumerate(words) if words[at - 1] == "--form-string"]
    data = {name: [value for other, value in fields if other == name] for name, _ in fields}
    with TestClient(mount(app(), path="/"), base_url="http://127.0.0.1") as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        said = client.post(words[1].removeprefix(call.url), data=data, files={"image": ("a.png", image)}).json()
    want = poise.Classifier(call.labels, "tiny", "zero-shot", template="an {}.", device="cpu")(image)
    assert said["results"]["zero-shot"]["probabilities"] == pytest.approx(want.probabilities, abs=1e-5)


def test_one_line_says_where_the_page_is(monkeypatch, tmp_path: Path) -> None:
    served: list[ServiceSettings] = []

    def run(made: FastAPI, address: uvicorn_server.Address, ready, say=None) -> None:
        served.append(made.state.service.settings)
        ready("http://127.0.0.1:1")

    monkeypatch.setattr(uvicorn_server, "run", run)
    said = CliRunner().invoke(command, ["serve", "--demo", "--model", "tiny"])
    assert (
        said.output
        == "poise: ready at http://127.0.0.1:1 with the model tiny; the page is at http://127.0.0.1:1/demo\n"
    )
    options = ["--model", "tiny", "--method", "tpt", "--template", "a {}", "--max-pixels", "9", "--augmix"]
    said = CliRunner().invoke(command, ["demo", "--no-browser", "--on-long-label", "truncate", *options])
    assert said.output == "poise: ready at http://127.0.0.1:1 with the model tiny (stop with Ctrl+C)\n"
    chosen = served[-1]
    assert (chosen.methods, chosen.template, chosen.limits.pixels, chosen.augmix) == (("tpt",), "a {}", 9, True)
    assert (chosen.on_long_label, chosen.hosts) == ("truncate", ("localhost", "127.0.0.1", "[::1]"))
