"""The calls that the page shows are correct, whatever was typed."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from poise.demo.calls import Call, calls_card, in_curl, in_python, in_shell
from poise.options import Options

ODD = ("it's", 'a "b"', "$(rm -rf .)", "-x", "@file", "<b>;type=text/html", "été 日本")


def call_of(file: str, labels: tuple[str, ...], methods: tuple[str, ...], **options: Any) -> Call:
    about = {name: options.pop(name) for name in ("calibrated", "switched_off") if name in options}
    return Call(file, Options(labels=labels, method=methods, **options), **about)


CALL = call_of("cat.png", ("cat", "dog"), ("zero-shot", "kld+cats"), model="tiny", views=8, seed=3, template="an {}.")
# without line breaks and commas, which separate labels on the page
letters = st.characters(exclude_characters=",\n\r", exclude_categories=("C", "Z"))
names = st.lists(st.text(letters, min_size=1, max_size=8), min_size=1, max_size=4, unique=True)


def test_python_gives_the_same_numbers(service, image, tmp_path, monkeypatch) -> None:
    (tmp_path / "cat.png").write_bytes(image)
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(in_python(CALL), {})
    want = poise.Classifier(["cat", "dog"], service.encoder, list(CALL.methods), template="an {}.", views=8, seed=3)(
        image
    )
    lines = [f"{name} {result.label} {result.confidence}" for name, result in want.items()]
    assert said.getvalue().splitlines() == lines


def test_command_gives_the_same_numbers(service, image, tmp_path, monkeypatch) -> None:
    (tmp_path / "cat.png").write_bytes(image)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(in_shell(CALL))
    assert words[0] == "poise"
    done = CliRunner().invoke(app, [*words[1:], "--format", "csv"])
    assert done.exit_code == 0, done.output
    want = poise.Classifier(["cat", "dog"], service.encoder, list(CALL.methods), template="an {}.", views=8, seed=3)(
        image
    )
    for result in want.values():
        assert f"{result.method},{result.label},{result.confidence!r}" in done.output


def test_what_the_server_was_started_with_is_in_the_calls() -> None:
    call = call_of("a.jpg", ("cat", "dog"), ("kld+cats",), init="mine.safetensors", augmix=True)
    assert "init='mine.safetensors'" in in_python(call)
    assert "augmix=True" in in_python(call)
    assert in_shell(call) == "poise classify a.jpg --labels cat,dog --init mine.safetensors --augmix"


def test_defaults_are_left_out() -> None:
    call = call_of("a.jpg", ("cat", "dog"), ("kld+cats",))
    assert in_python(call) == (
        "import poise\n\nclassify = poise.Classifier(['cat', 'dog'])\nresult = classify('a.jpg')\n"
        "print(result.label, result.confidence)"
    )
    assert in_shell(call) == "poise classify a.jpg --labels cat,dog"
    assert in_curl(call) == (
        "curl http://127.0.0.1:8000/v1/classify -F image=@a.jpg --form-string labels=cat --form-string labels=dog "
        "--form-string views=16 --form-string seed=0 --form-string methods=kld+cats"
    )


def test_calibrated_calls_name_the_calibration() -> None:
    call = call_of("a.jpg", ("cat", "dog"), ("kld+cats",), calibrated=True, coverage=0.9)
    assert "calibration='calibration.json',\n    coverage=0.9,\n)" in in_python(call)
    assert shlex.split(in_shell(call))[-4:] == ["--calibration", "calibration.json", "--coverage", "0.9"]
    assert in_curl(call_of("a.jpg", ("a",), ("tpt",), switched_off=True)).endswith("--form-string uncalibrated=true")


@given(labels=names, file=st.text(string.ascii_letters + " '\";,$-()`", min_size=1, max_size=9))
def test_any_label_and_file_name_stays_one_argument(labels: list[str], file: str) -> None:
    call = call_of(f"{file}.png", tuple(labels), ("tpt",))
    tree = ast.parse(in_python(call))
    made = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.keywords) == 1)
    assert ast.literal_eval(made.args[0]) == labels
    assert shlex.split(in_shell(call)) == [
        "poise",
        "classify",
        call.path,
        "--labels",
        ",".join(labels),
        "--method",
        "tpt",
    ]
    words = shlex.split(in_curl(call))
    assert [word for word in words if word.startswith("labels=")] == [f"labels={label}" for label in labels]
    assert words[3].startswith("image=@")
    assert not call.path.startswith("-")


@pytest.mark.parametrize("file", ["../../etc/passwd", "C:\\secret\\a.png", "-rf.png", ""])
def test_the_file_s_folder_is_left_out(file: str) -> None:
    assert call_of(file, ("a",), ("tpt",)).path in {"passwd", "a.png", "./-rf.png", "image.png"}


def test_the_panel_has_the_calls_as_text() -> None:
    page = calls_card(call_of("a.png", ODD, ("tpt",)))
    assert not re.search(r"[{}$`\\]|<b>", page)
    assert page.count("<pre") == 3
