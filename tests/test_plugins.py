"""A package that is installed beside poise adds rows to every command; the package is the one of the guide."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

import poise
from poise import metrics, plugins
from poise.cli.app import app
from poise.errors import PluginError, UnknownNameError
from poise.registry import Registry
from tests.documentation.blocks import ROOT
from tests.evaluate.attempt import make_images
from tests.serve.live import Live, body, png

GUIDE = (ROOT / "docs" / "guides" / "own_package.md").read_text("utf-8")
# Runs several commands in one process, as importing torch takes seconds; prints the outputs by command.
DRIVER = """
import contextlib, io, json, sys
from poise.cli.app import app
outputs = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        app(command, standalone_mode=False)
    outputs.append(output.getvalue())
json.dump(outputs, sys.stdout)
"""


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that has poise and the packages in ``folder``."""
    path = os.pathsep.join([str(folder), str(Path(poise.__file__).parents[1])])
    return {name: value for name, value in os.environ.items() if name != plugins.CHOICE} | {"PYTHONPATH": path}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the guide's package, without a network."""
    pytest.importorskip("setuptools", reason="install the 'test' extra")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    files = re.findall(r"```\w+\n# (poise-beans/\S+)\n(.*?)```", GUIDE, re.DOTALL)
    assert [name for name, _ in files] == ["poise-beans/pyproject.toml", "poise-beans/poise_beans.py"]
    for name, text in files:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    offline = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source / "poise-beans")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.timeout(600)  # Ray is started, which takes minutes on a busy machine
def test_an_installed_package_reaches_lists_runs_workers_tables_figures_and_the_page(
    installed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="install the 'dev' or the 'ray' extra")
    (tmp_path / "DATA" / "beans").mkdir(parents=True)
    test = make_images(tmp_path / "images", classes=2, each=3)
    for label in range(2):
        for file in (test / f"class{label}").iterdir():
            target = tmp_path / "DATA" / "beans" / "test" / f"{label}_{file.name}"
            target.parent.mkdir(exist_ok=True)
            file.rename(target)
    runs = str(tmp_path / "runs")
    chosen = ["--dataset", "beans", "--model", "beans-model", "--method", "zero-shot,kld+spread"]
    options = ["--data", str(tmp_path / "DATA"), "--seeds", "1", "--views", "4", "--device", "cpu"]
    compared = ["--method", "kld+spread", "--against", "zero-shot", "--metrics", "overconfidence"]
    lists = [["list", kind] for kind in ("plugins", "methods", "metrics", "datasets", "models")]
    commands = [
        *lists,
        ["bench", "run", *chosen, *options, "--engine", "ray", "--actors", "1", "--out", runs],
        ["bench", "table", runs, "--metrics", "overconfidence", "--format", "csv"],
        ["bench", "compare", runs, *compared],
        ["bench", "figures", runs, "--kinds", "metrics", "--out", str(tmp_path / "figures")],
        ["bench", "page", runs, "--out", str(tmp_path / "page.html")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment(installed),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    *listed, _, table, comparison, _, _ = json.loads(done.stdout)
    names = ["beans", "kld+spread", "overconfidence", "beans", "beans-model"]
    for output, name in zip(listed, names, strict=True):
        assert name in output.split()
    assert "poise-beans 0.1.0" in listed[0]
    assert "ours,kld+spread,overconfidence" in table
    assert "Beans" in table
    assert "Overconf." in comparison
    (figure,) = (tmp_path / "figures").glob("metrics_*.svg")
    assert {"Overconf.", "kld+spread", "#a1b2c3"} == {
        text for text in ("Overconf.", "kld+spread", "#a1b2c3") if text in figure.read_text("utf-8")
    }
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Mean confidence minus accuracy." in page
    assert "kld+spread" in page.split("</table>")[0]


def test_a_server_answers_with_the_model_and_the_method_of_a_package(installed: Path) -> None:
    options = ["--model", "beans-model", "--method", "kld+spread", "--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "poise", "serve", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(installed),
    )
    try:
        assert process.stderr is not None
        ready = re.match(
            r"poise: ready at http://127.0.0.1:(\d+) with the model beans-model", process.stderr.readline()
        )
        assert ready, process.stderr.read()
        answer = Live(FastAPI(), int(ready[1])).post("/v1/classify", json=body(png(0)))
        assert answer.status_code == 200, answer.text
        assert "kld+spread" in answer.text
    finally:
        process.kill()
        process.communicate()


# In this process: which plug-ins are found, when they are loaded, and what happens if one fails.


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a package with a plug-in, and forgets which ones were loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "load", plugins.Loader())
    monkeypatch.delenv(plugins.CHOICE)

    def install(name: str, code: str) -> None:
        facts = tmp_path / f"poise_{name}-1.2.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: poise-{name}\nVersion: 1.2\n")
        (facts / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = module_of_{name}\n")
        (tmp_path / f"module_of_{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, f"module_of_{name}", raising=False)

    return install


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import beans_of_nobody", "ModuleNotFoundError: No module named 'beans_of_nobody'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("from poise import metrics\nmetrics.register(metrics.get('ece'))", "The metric 'ece' is registered already"),
    ],
)
def test_a_package_that_fails_is_named_with_the_way_on(
    install: Callable[..., None], code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("broken", code)
    assert metrics.get("ece").name == "ece"  # a name that is known needs no plug-in
    for _ in range(2):  # the second time, too: otherwise its rows would be missing without a word
        with pytest.raises(PluginError) as raised:
            metrics.names()
        assert str(raised.value).startswith(
            f"The plug-in 'broken' of the package poise-broken 1.2 can't be loaded: {reason}"
        )
        assert "variable POISE_PLUGINS" in raised.value.hint
    monkeypatch.setattr(plugins, "load", plugins.Loader())
    monkeypatch.setenv(plugins.CHOICE, "")
    assert "ece" in metrics.names()


def test_plugins_are_loaded_once_by_the_first_question_that_they_could_answer(
    install: Callable[..., None], tmp_path: Path
) -> None:
    colours = Registry[int]("colour")
    colours.add("red")(1)
    sys.modules["colours_of_the_test"] = colours  # type: ignore[assignment]  # what the plug-in imports
    counted = "with open(__file__ + '.log', 'a') as log: log.write('x')"
    reads = "assert colours_of_the_test.names() == ['red']"  # plug-ins may read what is there before them
    install("green", f"import colours_of_the_test\n{reads}\ncolours_of_the_test.add('green')(2)\n{counted}")
    log = tmp_path / "module_of_green.py.log"
    try:
        assert colours.get("red") == 1
        assert "red" in colours
        assert not log.exists()
        assert "green" in colours
        with pytest.raises(UnknownNameError, match="blue"):
            colours.get("blue")
        assert colours.names() == list(colours) == ["red", "green"]
        assert log.read_text() == "x"
    finally:
        del sys.modules["colours_of_the_test"]


def test_no_plugins_are_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "found", lambda: iter(()))
    done = CliRunner().invoke(app, ["list", "plugins"])
    assert done.exit_code == 0, done.output
    assert "POISE_PLUGINS" in done.output


def test_plugins_can_be_chosen(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("first", "")
    install("second", "raise RuntimeError")
    assert {"first", "second"} <= {plugin.name for plugin in plugins.chosen()}
    monkeypatch.setenv(plugins.CHOICE, "first")
    assert [plugin.name for plugin in plugins.chosen()] == ["first"]
    plugins.load()
    monkeypatch.setenv(plugins.CHOICE, "first,third")
    with pytest.raises(PluginError, match="'third', which is not installed"):
        plugins.chosen()


def test_files_and_modules_can_be_imported_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_in_a_file.py").write_text("LOADED = True")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv(plugins.IMPORT, os.pathsep.join([str(tmp_path / "plugin_in_a_file.py"), "json.tool"]))
    plugins.Loader()()
    assert sys.modules["plugin_in_a_file"].LOADED
    assert "json.tool" in sys.modules
    assert plugins.variables() == {plugins.CHOICE: "", plugins.IMPORT: os.environ[plugins.IMPORT]}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.py", "there is no such file"),
        ("json.py", "the name 'json' is that of another module"),
        ("no.thing", "No module"),
    ],
)
def test_what_cannot_be_imported_is_named(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("")
    source = str(tmp_path / name) if name.endswith(".py") else name
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv(plugins.IMPORT, source)
    with pytest.raises(PluginError, match=rf"^'{re.escape(source)}' can't be loaded: .*{reason}.* Check --import"):
        plugins.Loader()()


def test_help_imports_no_plugin_and_no_torch(installed: Path) -> None:
    code = (
        "import sys\nfrom poise.cli.app import app\ntry:\n    app(['--help'])\nfinally:\n    print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(installed))
    assert "--import FILE_OR_MODULE" in done.stdout
    assert "'poise.cli.app'" in done.stdout
    assert "'torch'" not in done.stdout
    assert "'poise_beans'" not in done.stdout
