from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from poise import methods
from poise.metrics import Estimate, equal_width
from poise.report.colours import BETTER, DARK_CARD, GREY, OVER, UNDER, WORSE, contrast, look, on_dark
from poise.report.figures import panels
from poise.report.figures.plot import NARROW, PANEL_WIDTHS, STYLE, Panel, Plot
from poise.report.figures.write import kinds
from poise.report.records.runs import load
from poise.report.records.scores import Scoreboard, scoreboard
from tests.report import made


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Scoreboard:
    folder = tmp_path_factory.mktemp("layout")
    levels = {"calibrate": 60, "coverage": 0.9, "max_error": 0.45}
    run = made.write_run(folder, datasets=("dtd",), methods=("zero-shot", "tpt", "kld+cats"), images=200, config=levels)
    made.write_features(run, "dtd")
    return scoreboard(load(folder), resamples=20)


def texts(figure: Figure) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield each visible text, its size in points and its box in pixels; tick labels outside the axes are not drawn."""
    figure.draw_without_rendering()
    ticks = {}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            for tick in axis.get_major_ticks():
                shown = low - slack <= tick.get_loc() <= high + slack and axes.axison
                ticks |= dict.fromkeys((id(tick.label1), id(tick.label2)), shown)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text().strip() and text.get_visible() and ticks.get(id(text), True):
            yield text.get_text(), text.get_fontsize(), text.get_window_extent().extents


def assert_readable(figure: Figure, name: str) -> None:
    found = list(texts(figure))
    width, height = figure.bbox.width, figure.bbox.height
    for text, size, box in found:
        assert size >= 9, f"{name}: '{text}' is small"
        inside = box[:2].min() >= -1 and box[2] <= width + 1 and box[3] <= height + 1
        assert inside, f"{name}: '{text}' is cut"
    for (one, _, a), (two, _, b) in combinations(found, 2):
        apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
        assert apart, f"{name}: '{one}' and '{two}' overlap"


@pytest.mark.parametrize("name", list(kinds))
def test_no_text_is_small_cut_or_over_another(board: Scoreboard, name: str) -> None:
    if name == "tsne":
        pytest.importorskip("sklearn")
    with matplotlib.rc_context(STYLE):
        for plot in kinds.get(name).plots(board):
            assert_readable(plot.figure(), plot.name)
            for width in (NARROW, *PANEL_WIDTHS.values()):
                size = width, sum(plot.heights) + 0.4
                assert_readable(plot.draw(plot.panels[-1:], 1, size), f"{plot.name} at {width} inches")


def test_a_long_title_is_wrapped() -> None:
    title = "a-dataset, a-run: class texts before and after tuning for image some/long/folder/name/image_0001.jpg"
    plot = Plot(name="x", title=title, panels=(Panel("", lambda axes: None),))
    with matplotlib.rc_context(STYLE):
        assert_readable(plot.figure(), "x")


def test_reliability_is_coloured_by_direction_and_faded_by_count() -> None:
    confidence = np.repeat([0.22, 0.62, 0.92], [10, 40, 160])
    correct = np.concatenate([np.ones(10), np.zeros(40), np.ones(80), np.zeros(80)])  # under, over, over
    axes, below = Figure().subplots(2)
    panels.reliability(axes, below, equal_width(confidence, correct.astype(bool)))
    gaps = {}
    for bar in axes.patches:
        colour = to_hex(bar.get_facecolor())
        if colour in (OVER, UNDER):
            gaps[round(bar.get_x() + bar.get_width() / 2, 3)] = colour, bar.get_facecolor()[3], bar.get_hatch()
    assert {at: colour for at, (colour, _, _) in gaps.items()} == {0.225: UNDER, 0.625: OVER, 0.925: OVER}
    strengths = [gaps[at][1] for at in sorted(gaps)]
    assert strengths == sorted(strengths)
    assert len(set(strengths)) == 3
    assert gaps[0.625][2]  # also told apart without colour
    assert not gaps[0.225][2]


@pytest.mark.parametrize(
    ("metric", "value", "colour"),
    [("ece", -0.1, BETTER), ("ece", 0.1, WORSE), ("accuracy", 0.1, BETTER), ("accuracy", -0.1, WORSE)],
)
def test_differences_are_coloured_by_direction(metric: str, value: float, colour: str) -> None:
    steady = Estimate((value,), np.full(100, value))
    assert panels.direction_colour(metric, steady) == colour
    unclear = Estimate((value,), np.linspace(-1, 1, 100))
    assert panels.direction_colour(metric, unclear) == GREY


def test_no_panel_has_a_legend(board: Scoreboard) -> None:
    for name in ("reliability", "confidence", "risk", "coverage", "certified", "entropy"):
        for plot in kinds.get(name).plots(board):
            assert plot.key
            assert all(axes.get_legend() is None for axes in plot.figure().axes)


def test_methods_of_one_colour_have_different_marks(board: Scoreboard) -> None:
    (plot,) = kinds.get("tradeoff").plots(board)
    assert len({(entry.colour, entry.kind) for entry in plot.key}) == len(plot.key) == 6


def test_every_method_is_visible_in_the_dark() -> None:
    for name in methods.names():
        assert contrast(on_dark(look(name).colour), DARK_CARD) >= 4.5, name


def test_contrast_as_wcag_defines_it() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
