from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from poise.errors import InvalidDatasetError, MissingDependencyError, UnknownNameError
from poise.metrics import Estimate
from poise.report.figures import panels
from poise.report.figures.tsne import embed, text_features
from poise.report.figures.write import kinds, write_figures
from poise.report.records.runs import load
from poise.report.records.scores import scoreboard
from tests.report import made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    levels = {"calibrate": 100, "coverage": 0.9, "max_error": 0.45}
    run = made.write_run(folder, datasets=("dtd",), methods=("zero-shot", "kld+cats"), images=300, config=levels)
    made.write_features(run, "dtd")
    return folder


def test_figures_of_several_runs_have_the_same_axes(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="few", config={"views": 6}, methods=("zero-shot", "tpt"))
    made.write_run(tmp_path, run="many", config={"views": 64}, methods=("zero-shot", "kld+cats"))
    board = scoreboard(load(tmp_path), metrics=("accuracy", "ece"), resamples=20)
    axes = [plot.figure().axes[0] for plot in kinds.get("tradeoff").plots(board)]
    assert len({(each.get_xlim(), each.get_ylim()) for each in axes}) == 1
    assert len(axes) == 2


def test_each_figure_is_announced(small: Path, tmp_path: Path) -> None:
    said: list[str] = []
    write_figures(small, tmp_path, only=("discrepancy", "tradeoff"), resamples=20, say=said.append)
    assert said == ["computing the metrics", "drawing discrepancy (1 of 2)", "drawing tradeoff (2 of 2)"]


def test_every_kind_is_drawn_as_png_and_svg(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    drawn = write_figures(small, tmp_path, resamples=20)
    assert drawn.notes == ()
    assert {path.suffix for path in drawn.files} == {".png", ".svg"}
    of_several = {"labels"}  # drawn in tests/evaluate/test_pairs.py
    assert {path.name.split("_")[0] for path in drawn.files} == set(kinds) - of_several
    for path in drawn.files:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 200
        else:
            ElementTree.parse(path)
    reliability = (tmp_path / "reliability_dtd_pocket.svg").read_text()
    assert re.search(r"ECE [\d.]+ % \[[\d.]+, [\d.]+\]", reliability)
    assert re.search(r"floor [\d.]+, n = 200 x 2", reliability)
    for name in ("metrics_pocket.svg", "tradeoff_pocket.svg"):
        assert "floor" in (tmp_path / name).read_text()


def test_estimates_whose_draws_are_nearly_all_equal_are_drawn() -> None:
    rare = Estimate((0.02,), np.repeat([0.0, 1.0], [980, 20]))
    panels.estimates(Figure().subplots(), "ece", {"zero": rare})
    panels.tradeoff(Figure().subplots(), {"zero": (rare, rare)}, "")


def test_figures_of_calibration(small: Path, tmp_path: Path) -> None:
    write_figures(small, tmp_path, only=("coverage", "certified"), resamples=20)
    assert "coverage asked for" in (tmp_path / "coverage_dtd_pocket.svg").read_text()
    assert re.search(r"kld\+cats: \d+ % answered, [\d.]+ % wrong", (tmp_path / "certified_dtd_pocket.svg").read_text())


def test_a_figure_without_content_is_an_error_if_it_was_asked_for(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",))
    with pytest.raises(InvalidDatasetError, match=r"nothing for the figure 'coverage'.*calibration images"):
        write_figures(tmp_path, tmp_path / "out", only=("coverage",), resamples=20)


def test_the_same_records_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    first = write_figures(small, tmp_path / "a", only=("discrepancy",), resamples=20)
    again = write_figures(small, tmp_path / "b", only=("discrepancy",), resamples=20)
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in again.files]


def test_unknown_kind(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="risk"):
        write_figures(small, tmp_path, only=("rsk",))


def test_no_features_is_a_note_unless_asked_for(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",))
    drawn = write_figures(tmp_path, tmp_path / "out", resamples=20)
    assert len(drawn.notes) == 1
    assert "text features" in drawn.notes[0]
    with pytest.raises(InvalidDatasetError, match="text features"):
        write_figures(tmp_path, tmp_path / "out", only=("tsne",), resamples=20)


def test_missing_scikit_learn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(MissingDependencyError, match="scikit-learn"):
        embed(np.zeros((4, 3)), np.ones((4, 3)))


def test_text_features_are_read(small: Path) -> None:
    (texts,) = text_features(load(small))
    assert texts.dataset == "dtd"
    assert texts.start.shape == (6, 16)
    assert texts.image == "a"
    centre = texts.start.mean(0)
    assert texts.dispersion() == pytest.approx(np.mean([np.linalg.norm(row - centre) for row in texts.start]))
