"""The container files, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from poise.cli.app import app
from poise.serve.http.problems import STATUSES
from poise.serve.limits import Limits
from poise.serve.telemetry import Metrics

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
    copied.remove("wheel[s]")  # a folder that may be absent, which a pattern allows
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


def test_alerts_are_about_metrics_that_exist() -> None:
    rules = _yaml("alerts.yml")["groups"][0]["rules"]
    (mounted,) = _yaml("prometheus.yml")["rule_files"]
    assert f"./alerts.yml:{mounted}:ro" in _compose()["services"]["prometheus"]["volumes"]
    metrics = Metrics()
    metrics.add_evidence(lambda: 0.0)
    known = {"up", *(f"{family.name}_total" for family in metrics.registry.collect())}
    known |= {family.name for family in metrics.registry.collect()}
    for rule in rules:
        assert rule["alert"] in (ROOT / "docs" / "serving.md").read_text()
        used = set(re.findall(r"\b(up|poise_\w+)", rule["expr"]))
        assert used
        assert used <= known
        codes = re.findall(r'reason=~"([^"]*)"', rule["expr"])
        assert all(code in STATUSES for row in codes for code in row.split("|"))


def test_the_cache_is_the_user_s() -> None:
    """A new volume gets the owner of the folder that it is mounted on, and root's if there is none."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (mount,) = _compose()["services"]["poise"]["volumes"]
    folder = mount.split(":")[1]
    (made,) = (number for number, line in enumerate(lines) if line.startswith(f"RUN mkdir -p {folder}"))
    assert made > lines.index("USER poise")
    assert f"HF_HOME={folder}" in "\n".join(lines)


def test_compose_with_a_calibration_and_with_a_gpu() -> None:
    calibrated, gpu = (_yaml(f"compose.{name}.yaml")["services"]["poise"] for name in ("calibration", "gpu"))
    command = calibrated["command"]
    assert command[:2] == _compose()["services"]["poise"]["command"]
    assert all(option in _help() for option in command if option.startswith("--"))
    target = command[command.index("--calibration") + 1]
    assert [volume.split(":")[1:] for volume in calibrated["volumes"]] == [[target, "ro"]]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert gpu["environment"] == {"POISE_SERVE_DEVICE": "cuda"}


def test_kubernetes() -> None:
    deployment, service = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"EXPOSE {port['containerPort']}" in dockerfile
    for probe, path in {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/live"}.items():
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"--uid {pod['securityContext']['runAsUser']}" in dockerfile
    _, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(pause) + Limits.seconds
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]  # docs/serving.md says why
    assert all(option.split("=")[0] in _help() for option in container["args"])
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert container["args"][0] == f"--token-file={mounts['token']['mountPath']}/token"
    assert mounts["token"]["readOnly"]
    assert f"HF_HOME={mounts['cache']['mountPath']}/" in dockerfile
    assert mounts["tmp"]["mountPath"] == "/tmp"
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector == service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert service["metadata"]["name"] != "poise-serve"


@pytest.mark.parametrize("mark", ["(calibration)", "(GPU)"])
def test_marked_lines_of_kubernetes_can_be_uncommented(mark: str) -> None:
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text()
    lines = [line for line in text.splitlines() if line.rstrip().endswith(mark) and not line.startswith("#")]
    assert lines
    for line in lines:
        text = text.replace(line, line.replace("# ", "", 1).removesuffix(mark))
    deployment, _ = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert all(option.split("=")[0] in _help() for option in container["args"])
    assert container["resources"]["limits"].keys() == {"memory", *(["nvidia.com/gpu"] if mark == "(GPU)" else [])}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def _yaml(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / name).read_text())
    return found


def _compose() -> dict[str, Any]:
    return _yaml("compose.yaml")
