"""Composed images with two known labels in benchmark runs: what they are, what is refused, and what reports say."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise.cli.app import app
from poise.data import open_dataset
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.evaluate.pairs import composed
from poise.evaluate.run import run
from poise.metrics import estimate
from poise.report.exports import export
from poise.report.figures.write import write_figures
from poise.report.records.runs import load
from poise.report.tables.analyses import analysis_tables
from tests.backbones.saved import save_siglip
from tests.evaluate.attempt import make_images
from tests.evaluate.small_run import configure, rows_of

pytestmark = pytest.mark.usefixtures("one_commit")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("photos"), classes=3, each=14)


def test_every_photo_is_in_one_image_with_a_photo_of_another_class(photos: Path) -> None:
    images = composed(f"pairs:folder:{photos}", open_dataset)
    names = [name for item in images.items for name in item.id.split("+")]
    assert Counter(names).most_common(1)[0][1] == 1
    assert len(images) >= 18
    known = {item.id: item.label for item in open_dataset(f"folder:{photos}").items}
    for item in images.items:
        left, right = item.id.split("+")
        assert (item.label, item.others) == (known[left], (known[right],))
        assert item.label != item.others[0]
    whole = Image.open(io.BytesIO(images.items[0].source()))  # type: ignore[arg-type]
    assert whole.size == (448, 448)
    assert images.items[0].source() == images.items[0].source()
    two = composed(f"pairs:folder:{photos}:2", open_dataset)
    assert two.classes == ("class0", "class1")
    with pytest.raises(InvalidDatasetError, match="no two images of different classes"):
        composed(f"pairs:folder:{photos}:1", open_dataset)


def test_a_run_and_its_reports(photos: Path, tmp_path: Path) -> None:
    save_siglip(tmp_path / "siglip")
    changed = {
        "datasets": f"pairs:folder:{photos}",
        "methods": "zero-shot",
        "seeds": "1",
        "tsne": False,
        "model": f"transformers:{tmp_path / 'siglip'}",
        "calibrate": 10,
        "coverage": 0.5,
        "max_error": 0.5,
    }
    run(*configure(photos, tmp_path / "runs", **changed))
    rows = list(rows_of(tmp_path / "runs").values())
    assert all(len(row["labels"]) == 2 and row["labels"][0] == row["label"] for row in rows)
    np.testing.assert_allclose(rows[0]["probs"], 1 / (1 + np.exp(-np.array(rows[0]["logits"]))), atol=1e-6)
    records = load(tmp_path / "runs")
    plain, calibrated = (next(records.chosen(method=name)) for name in ("zero-shot", "zero-shot | calibrated"))
    (before,), (after,) = plain.samples(), calibrated.samples()
    assert before.outcomes is None
    assert after.outcomes is not None
    assert len(after) == len(rows) - 10
    scores = estimate([after], resamples=20)
    assert {"map", "label_ece", "label_ece_floor", "label_brier", "yes", "no", "recall"} <= set(scores)
    assert "accuracy" not in scores
    shown = CliRunner().invoke(
        app, ["bench", "table", str(tmp_path / "runs"), "--metrics", "map,label_ece,yes,precision,no,recall"]
    )
    assert "composed of two photos" in " ".join(shown.output.split())
    assert analysis_tables(records) == []
    assert export(records, tmp_path / "exported") == []
    drawn = write_figures(tmp_path / "runs", tmp_path / "figures", only=("labels",), resamples=20)
    assert {path.name.split("_")[0] for path in drawn.files} == {"labels"}
    (drawing,) = (path.read_text() for path in drawn.files if path.suffix == ".svg")
    assert "frequency below probability" in drawing
    assert not re.search("accuracy|confidence", drawing)
    page = CliRunner().invoke(app, ["bench", "page", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output


def test_what_is_refused(photos: Path, tmp_path: Path) -> None:
    base = {"datasets": f"pairs:folder:{photos}", "seeds": "1", "tsne": False}
    for changed, message in (
        ({"methods": "zero-shot,tpt"}, "can't be answered by zero-shot, tpt"),
        ({"methods": "zero-shot", "unknown": 0.5}, "labels of which one applies"),
        ({"methods": "zero-shot"}, "no probabilities of single labels"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            run(*configure(photos, tmp_path, **base, **changed))
