"""The container files, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from poise.cli.app import app

ROOT = Path(__file__).parents[2]


def _help() -> str:
    return CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output


def test_options_exist() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    match = re.search(r"ENTRYPOINT (\[.*\])", dockerfile)
    assert match
    entry, compose = yaml.safe_load(match[1]), _compose()
    assert entry[:2] == ["poise", "serve"]
    for option in [*entry[2:], *compose["services"]["poise"]["command"]]:
        assert not option.startswith("--") or option in _help()


def test_copied_files_exist_and_are_not_ignored() -> None:
    dockerfile, allowed = (ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text().split()
    copied = [name for line in re.findall(r"^COPY (.*)$", dockerfile, re.M) for name in shlex.split(line)[:-1]]
    assert {"src", "pyproject.toml", "constraints.txt"} <= {*copied}
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


def test_the_server_is_healthy_only_when_ready_and_runs_without_privileges() -> None:
    dockerfile, service = (ROOT / "Dockerfile").read_text(), _compose()["services"]["poise"]
    assert "/ready" in dockerfile
    assert re.search(r"^USER poise$", dockerfile, re.M)
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for part in _compose()["services"].values() for port in part["ports"])


def test_prometheus_asks_the_server_with_the_token() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["poise:8000"]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/token"
    assert "token" in _compose()["services"]["prometheus"]["secrets"]


def _compose() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    return compose
