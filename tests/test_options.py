"""An option is written once: a field that is added to `poise.options` reaches all that takes options."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import poise
from poise.client import AsyncClient, Client
from poise.evaluate.config import RunConfig
from poise.inference.auto_views import FULL
from poise.options import Options, request_rows, rows

# One line more in `AnswerOptions`, before anything else of poise is imported.
ADDED = """
import sys, types
from pathlib import Path
import poise

file = Path(poise.__file__).parent / "options.py"
marker = "    seed: int = option("
source = file.read_text("utf-8")
assert source.count(marker) == 1
field = '    blur: float = option(0.5, "Blur of the views.", request="blur", bounds={"ge": 0}, later=True)\\n'
module = types.ModuleType("poise.options")
sys.modules["poise.options"] = poise.options = module
exec(compile(source.replace(marker, field + marker), str(file), "exec"), module.__dict__)
"""
PLACES = """
import json, inspect
from typer.testing import CliRunner
from poise.cli.app import app

found = {}
for command in (["classify"], ["calibrate"], ["serve"], ["demo"], ["export", "onnx"]):
    found["help of " + " ".join(command)] = "--blur" in CliRunner().invoke(app, [*command, "--help"]).output
    name = "POISE_" + "_".join(command).upper() + "_BLUR"
    words = {"classify": ["x"], "calibrate": ["x", "--out", "y"], "export": ["--out", "y"]}.get(command[0], [])
    found[name] = "Invalid value for '--blur'" in CliRunner().invoke(app, [*command, *words], env={name: "no"}).output

from poise.serve.settings import Job, ServiceSettings
from poise.serve.jobs import plan
settings = ServiceSettings(blur=0.25)
found["server settings"] = settings.blur == 0.25
found["server default"] = plan(Job(labels=("a", "b")), settings).options.blur == 0.25
found["request"] = plan(Job(labels=("a", "b"), blur=0.75), settings).options.blur == 0.75

from poise.serve.http.app import create_app
schema = create_app(settings).openapi()["paths"]["/v1/classify"]["post"]["requestBody"]["content"]
for kind, body in schema.items():
    found["schema of " + kind] = body["schema"]["properties"]["blur"]["description"] == "Blur of the views."
from poise.serve.http.schemas import ClassifyRequest
found["parsed request"] = ClassifyRequest(image="", labels=["a", "b"], blur=0.75).job().options["blur"] == 0.75

from poise.client import Client
from poise.client.http_client import _Calls
found["client"] = _Calls._classify(b"x", {"blur": 0.75})["data"] == {"blur": "0.75"}
found["client signature"] = "blur" in inspect.signature(Client.classify).parameters

from poise.options import Options
from poise.demo.calls import Call, in_curl, in_python, in_shell
call = Call("a.png", Options(labels=("a", "b"), blur=0.75))
found["demo, Python"] = "blur=0.75" in in_python(call)
found["demo, command"] = "--blur 0.75" in in_shell(call)
found["demo, HTTP"] = "blur=0.75" in in_curl(call)

from poise.inference import pipelines
made = {}
pipelines.Classifier = lambda *given, **options: made.update(options) or (_ for _ in ()).throw(RuntimeError)
try:
    pipelines.pipeline(model="tiny", device="cpu", blur=0.75)("x.png", ["a", "b"])
except RuntimeError:
    found["pipeline"] = made["blur"] == 0.75

import numpy as np
from dataclasses import asdict, replace
from poise import Classifier
from poise.calibration import Conditions
from poise.inference.guarantees import conditions_of
classify = Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu")
now = conditions_of(classify)
found["conditions"] = now.blur == 0.5
stored = json.loads(json.dumps(asdict(now)))
found["conditions in a file"] = Conditions.from_dict({**stored, "blur": 0.75}).blur == 0.75
del stored["blur"]
found["conditions of an earlier file"] = Conditions.from_dict(stored) == now
try:
    now.check(replace(now, blur=0.75))
except Exception as error:
    found["conditions differ"] = "made with blur 0.5" in str(error)
images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
calibration = classify.calibrate(images, ["cat", "dog"] * 10)
found["options of a calibration"] = calibration.options()["blur"] == 0.5

from poise.export import export_onnx
from poise.export.reopen import onnx_options
export_onnx(classify, sys.argv[1])
found["export"] = onnx_options(sys.argv[1])["blur"] == 0.5

from poise.cli.output import row_settings
found["rows to resume"] = row_settings.settings({"method": ["zero-shot"], "blur": 0.75}, classify)["blur"] == 0.75
print(json.dumps(found))
"""


def test_a_field_added_at_run_time_is_found_everywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADDED + PLACES, str(tmp_path / "x.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 29
    assert [name for name, here in found.items() if not here] == []


def test_the_keywords_of_the_classifier_are_the_options() -> None:
    keywords = inspect.signature(poise.Classifier).parameters
    assert {*keywords} == {row.name for row in rows(Options)}
    for row in rows(Options):
        assert keywords[row.name].default == (inspect.Parameter.empty if row.name == "labels" else row.default)
        assert f"        {row.name}: " in str(poise.Classifier.__doc__), row.name


def test_16_views_are_the_default_and_64_the_papers() -> None:
    assert (Options().views, RunConfig().views, FULL) == (16, 64, 64)
    classify = poise.Classifier(["cat", "dog"], "tiny", device="cpu")
    images = list(np.random.default_rng(0).integers(0, 256, (21, 32, 32, 3), np.uint8))
    made = poise.Classifier(["cat", "dog"], "tiny", device="cpu", views=64).calibrate(images[1:], ["cat", "dog"] * 10)
    assert classify.recipe.views == 16
    assert made.conditions.views == poise.Classifier.from_calibration(made, device="cpu").recipe.views == 64
    with pytest.raises(poise.errors.InvalidCalibrationError, match="views 64, and this classifier has 16"):
        poise.Classifier(["cat", "dog"], "tiny", device="cpu", calibration=made)


def test_calls_of_the_client_show_the_options_of_a_request() -> None:
    names = {row.about.request for row in request_rows()}
    assert names == {
        *("labels", "parents", "groups", "methods", "template", "views", "seed", "coverage", "max_error"),
        *("independent", "precision", "recall"),
        *("details", "deadline", "uncalibrated"),
    }
    for kind in (Client, AsyncClient):
        for call in (kind.classify, kind.batch):
            assert names <= {*inspect.signature(call).parameters}
