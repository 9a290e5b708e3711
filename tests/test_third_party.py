"""A method and a metric registered at run time are found by everything that lists, runs, tabulates or draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poise import methods, metrics
from poise.cli.app import app
from tests.evaluate.attempt import arguments, make_images

METHOD = methods.Method(
    name="kld+mine",
    terms=(methods.Term("divergence"), methods.Term("dispersion", 5.0)),
    about=methods.About(description="a third party's method", colour="#a1b2c3"),
)
METRIC = metrics.Metric(
    name="overconfidence",
    title="Overconf.",
    about="Mean confidence minus accuracy, by a third party.",
    value=lambda sample: float(sample.confidence.mean() - sample.correct.mean()),
)


@pytest.fixture
def registered() -> Iterator[None]:
    methods.register(METHOD)
    metrics.register(METRIC)
    yield
    methods.methods.remove(METHOD.name)
    metrics.unregister(METRIC.name)


def run(*command: str) -> str:
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_third_partys_rows_work_everywhere(tmp_path: Path, registered: None) -> None:
    assert METHOD.name in run("list", "methods", "--filter", "mine")
    assert METRIC.about in run("list", "metrics", "--filter", "third party")
    images, runs = make_images(tmp_path / "images"), str(tmp_path / "runs")
    run(*arguments(images, tmp_path / "runs", "--method", f"zero-shot,{METHOD.name}"))
    table = run("bench", "table", runs, "--metrics", METRIC.name, "--format", "csv")
    assert f"ours,{METHOD.name},{METRIC.name}" in table
    compared = run(
        "bench", "compare", runs, "--method", METHOD.name, "--against", "zero-shot", "--metrics", METRIC.name
    )
    assert METRIC.title in compared
    run("bench", "figures", runs, "--kinds", "metrics,confidence", "--out", str(tmp_path / "figures"))
    (overview,) = (tmp_path / "figures").glob("metrics_*.svg")
    assert METRIC.title in overview.read_text("utf-8")
    assert METHOD.name in overview.read_text("utf-8")
    assert METHOD.about.colour in overview.read_text("utf-8")
    run("bench", "page", runs, "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert METRIC.about in page
    assert METHOD.name in page.split("</table>")[0]
