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

# One field more in `ModelOptions`, and the keyword of `Classifier`, before anything of poise is imported.
ADDED = """
import importlib.util, sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

CHANGES = {
    "poise.options": (
        '    init: str = option("template"',
        '    blur: float = option(0.5, "Blur of the views.", request="blur", bounds={"ge": 0}, later=True)\\n',
    ),
    "poise.inference.classifier": ("        augmix: bool = False,", "        blur: float = 0.5,\\n"),
}

class Changed(SourceFileLoader):
    def get_code(self, name):
        source, (marker, added) = Path(self.path).read_text("utf-8"), CHANGES[name]
        assert source.count(marker) == 1, name
        return compile(source.replace(marker, added + marker), self.path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name not in CHANGES:
            return None
        file = str(Path(path[0]) / (name.rpartition(".")[2] + ".py"))
        return importlib.util.spec_from_file_location(name, file, loader=Changed(name, file))

sys.meta_path.insert(0, Finder)
"""
PLACES = """
import functools, gc, json, inspect
import typer.testing
from typer.testing import CliRunner
from poise.cli.app import app
gc.disable()  # a short process, of which it takes a second
typer.testing._get_command = functools.cache(typer.testing._get_command)

found, folder = {}, Path(sys.argv[1])
for command in (["classify"], ["calibrate"], ["serve"], ["demo"], ["export", "onnx"], ["bench", "run"]):
    found["help of " + " ".join(command)] = "--blur" in CliRunner().invoke(app, [*command, "--help"]).output
    name = "POISE_" + "_".join(command).upper() + "_BLUR"
    words = {"classify": ["x"], "calibrate": ["x", "--out", "y"], "export": ["--out", "y"]}.get(command[0], [])
    found[name] = "Invalid value for '--blur'" in CliRunner().invoke(app, [*command, *words], env={name: "no"}).output

from poise.evaluate.config import RunConfig, build, read
(folder / "run.toml").write_text('datasets = ["folder:x"]\\nmethods = ["zero-shot"]\\nmodel = "tiny"\\nblur = 0.75')
config, _ = build(read(folder / "run.toml")[0])
found["TOML"] = config.blur == config.hashed()["blur"] == 0.75
found["runs of earlier versions"] = "blur" not in RunConfig(datasets=("x",)).hashed()
planned = CliRunner().invoke(app, ["bench", "run", "--config", str(folder / "run.toml"), "--dry-run", "--blur", "0.25"])
found["plan of a run"] = "blur = 0.25" in planned.output

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

import httpx2
from poise.client import Client
sent = {}
httpx2.Client.request = lambda self, method, **request: sent.update(request) or httpx2.Response(204)
try:
    Client("http://127.0.0.1").classify(b"x", blur=0.75)
except Exception:
    found["client"] = sent["data"] == {"blur": "0.75"}
found["client signature"] = "blur" in inspect.signature(Client.classify).parameters

from poise.options import Options
from poise.demo.calls import Call, in_curl, in_python, in_shell
call = Call("a.png", Options(labels=("a", "b"), blur=0.75))
found["demo, Python"] = "blur=0.75" in in_python(call)
found["demo, command"] = "--blur 0.75" in in_shell(call)
found["demo, HTTP"] = "blur=0.75" in in_curl(call)

import numpy as np
from poise import Classifier, pipeline
from poise.inference import pipelines
images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
made = []
pipelines.Classifier = lambda *given, **options: made.append(Classifier(*given, **options)) or made[0]
pipeline(model="tiny", method="zero-shot", device="cpu", blur=0.75)(images[0], ["a", "b"])
found["pipeline"] = made[0].options.blur == 0.75

from dataclasses import asdict
from poise.calibration import Conditions
from poise.inference.guarantees import conditions_of
classify = Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu", blur=0.75)
now = conditions_of(classify)
found["conditions"] = now.blur == 0.75
stored = json.loads(json.dumps(asdict(now)))
found["conditions in a file"] = Conditions.from_dict(stored) == now
del stored["blur"]
found["conditions of an earlier file"] = Conditions.from_dict(stored).blur == 0.5
calibration = classify.calibrate(images, ["cat", "dog"] * 10)
found["options of a calibration"] = Classifier.from_calibration(calibration, device="cpu").options.blur == 0.75
try:
    Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu", calibration=calibration)
except Exception as error:
    found["conditions differ"] = "made with blur 0.75, and this classifier has 0.5" in str(error)

from poise.export import export_onnx
from poise.export.reopen import onnx_options
export_onnx(classify, folder / "x.onnx")
found["export"] = onnx_options(folder / "x.onnx")["blur"] == 0.75

from poise.cli.output import row_settings
found["rows to resume"] = row_settings.settings({"method": ["zero-shot"], "blur": 0.75}, classify)["blur"] == 0.75
print(json.dumps(found))
"""


def test_a_field_added_at_run_time_is_found_everywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADDED + PLACES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 34
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
