"""The zero-shot gate: what is not as published stops the run before the work, and the cause is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from poise.backbones import load_model
from poise.data import catalog
from poise.errors import InvalidDatasetError
from poise.report.published import paper
from poise.reproduce.bands import band, published_values
from poise.reproduce.gate import Check, GateError
from poise.reproduce.timing import spoken
from tests.backbones.saved import save_clip
from tests.reproduce import made


def found(error: GateError) -> list[str]:
    """The names of the causes that were found."""
    lines = [line.strip() for line in error.lines]
    return [line.split(": ")[1].split(" (")[0] for line in lines if line.startswith("found: ")]


def test_the_right_settings_pass(table):
    assert all(check.passed for check in table.done.gate)
    assert {check.metric for check in table.done.gate} == {"accuracy", "ece"}
    assert any("about" in text and "timed on this machine" in text for text in table.said)


def test_a_wrong_activation_stops_the_run(table, tmp_path):
    model = made.save_model(tmp_path / "gelu", quick_gelu=False)
    with pytest.raises(GateError) as error:
        table.run(tmp_path / "runs", model=f"local-dir:{model}")
    assert found(error.value) == ["QuickGELU"]
    assert not (tmp_path / "runs" / "made").exists()  # nothing but the gate was run


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_the_activation_is_seen_in_the_format_of_transformers(activation, tmp_path):
    save_clip(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        content[tower]["hidden_act"] = activation
    (tmp_path / "config.json").write_text(json.dumps(content))
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    assert encoder.quick_gelu == (activation == "quick_gelu")


def test_a_wrong_template_stops_the_run(table, tmp_path):
    with pytest.raises(GateError) as error:
        table.run(tmp_path / "runs", template="a bad sketch of the {}, upside down.")
    assert found(error.value)[0] == "template"


def test_a_wrong_class_order_stops_the_run(table, tmp_path):
    data = table.copy(tmp_path)
    made.save_split(data, table.labels, order=made.WRONG)
    catalog.datasets.remove(made.NAME)
    catalog.register(made.row(class_hash=""))
    with pytest.raises(GateError) as error:
        table.run(tmp_path / "runs", data=str(data))
    assert found(error.value) == ["class order"]


def test_class_names_in_another_order_stop_the_check_of_the_data(table, tmp_path):
    data = table.copy(tmp_path)
    file = data / made.NAME / "split_made.json"
    content = json.loads(file.read_text())
    swapped = {0: 1, 1: 0}
    content["test"] = [[path, swapped.get(label, label), name] for path, label, name in content["test"]]
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidDatasetError, match="order"):
        table.run(tmp_path / "runs", data=str(data))


def test_a_wrong_split_stops_the_run(table, tmp_path):
    data = table.copy(tmp_path)
    file = data / made.NAME / "split_made.json"
    made.save_split(data, table.labels, first=15)
    with pytest.raises(GateError) as error:  # as many images, but not the published ones
        table.run(tmp_path / "same", data=str(data))
    assert any(line.strip().startswith("possible: split") for line in error.value.lines)
    content = json.loads(file.read_text())
    numbers = np.random.default_rng(0)
    content["test"] = [
        [path, at := int(numbers.integers(len(made.CLASSES))), made.CLASSES[at]] for path, *_ in content["test"][:30]
    ]
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidDatasetError, match="published test split has 40"):  # another number of images
        table.run(tmp_path / "fewer", data=str(data))
    with pytest.raises(GateError) as error:
        table.run(tmp_path / "fewer", data=str(data), partial_data=True)
    assert "split" in found(error.value)


def test_the_gate_of_some_images_uses_an_interval():
    whole = Check("made", "accuracy", 80.0, 80.0, 80.0, (81.0, 82.0), 1000)
    assert whole.allowed == pytest.approx((80.7, 82.3))
    assert not whole.passed
    assert replace(whole, low=74.0, high=85.0).passed
    assert not replace(whole, low=70.0, high=80.5).passed
    assert replace(whole, metric="ece", judged=False).passed


def test_bands_are_the_larger_of_two_spreads():
    (row,) = paper.rows("table1", method="zero-shot", metric="accuracy")
    assert published_values("zero-shot", "caltech101", "accuracy") == [92.9, 93.96]
    assert band(row, "caltech101").points == pytest.approx(1.06)
    assert band(row, "caltech101").reason == "spread of published re-runs"
    assert band(row, "dtd").points == pytest.approx(0.33)
    assert band(row, "").points == pytest.approx(0.33)


def test_times_as_people_say_them():
    assert [spoken(seconds) for seconds in (5, 95, 7300, 200000)] == ["5 seconds", "2 minutes", "2.0 hours", "2.3 days"]
