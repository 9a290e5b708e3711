"""The method table: published settings, and clear refusals."""

from __future__ import annotations

import pytest

from poise import methods
from poise.errors import InvalidOptionError, UnknownNameError


def test_the_rows_are_the_papers() -> None:
    assert methods.names() == ["zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+cats", "kld", "kld+cats"]
    assert set(methods.DESCRIPTIONS) == set(methods.names())


@pytest.mark.parametrize(("name", "weight", "on_shift"), [("c-tpt", 50, 20), ("o-tpt", 18, 2), ("tpt", 0, 0)])
def test_published_weights(name: str, weight: float, on_shift: float) -> None:
    assert methods.get(name).weight == weight
    assert methods.get(name).on_shift().weight == on_shift


def test_published_defaults() -> None:
    method = methods.get("kld+cats")
    assert (method.steps, method.lr, method.weight_decay, method.selection) == (1, 5e-3, 0.01, 0.1)
    assert (method.t_min, method.t_max, method.detach_temperature) == (0.1, 10.0, False)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'kld\+cats'"):
        methods.get("kld+cat")
    with pytest.raises(UnknownNameError, match="Did you mean 'steps'"):
        methods.get("tpt", step=2)


@pytest.mark.parametrize("options", [
    {"steps": -1}, {"steps": 1.5}, {"lr": 0}, {"lr": float("nan")}, {"selection": 0}, {"selection": 2}, {"t_min": 0},
    {"t_min": 20}, {"weight": -1}, {"weight_decay": float("inf")},
])  # fmt: skip
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(InvalidOptionError):
        methods.get("kld+cats", **options)
