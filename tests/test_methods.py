"""The method table: published settings, and clear refusals."""

from __future__ import annotations

import copy

import pytest

from poise import methods
from poise.errors import InvalidOptionError, UnknownNameError
from poise.evaluate.config import build, override
from poise.evaluate.resolve import make_methods
from poise.inference.classifier import Classifier
from poise.methods import Method, Term
from poise.report.colours import look


def test_the_rows_are_the_papers() -> None:
    assert methods.names() == ["zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+cats", "kld", "kld+cats"]
    rows = [methods.get(name).about for name in methods.names()]
    assert all(row.description for row in rows)
    assert len({row.colour for row in rows}) == len(rows)


def test_peers_have_rows_of_their_own() -> None:
    peers = [methods.get(name) for name in methods.names("peers")]
    assert {"zero", "mta", "tps", "a-tpt", "soc", "penalty", "zs-norm"} <= {method.name for method in peers}
    assert all(method.about.description and method.about.citation for method in peers)
    looks = [(about.colour, about.dash) for about in (methods.get(name).about for name in methods.every_name())]
    assert len(set(looks)) == len(looks)
    assert methods.expand("paper") == methods.names() == methods.every_name()[:7]
    with pytest.raises(UnknownNameError, match="group of methods"):
        methods.names("pears")


def test_all_are_those_that_run_everywhere() -> None:
    assert {"kld+cats", "ce", "mta", "zero"} <= set(methods.names("all"))
    assert not {"tda", "dmn", "tip-adapter"} & set(methods.names("all"))
    assert methods.names("all") == methods.expand("all")
    Classifier(["cat", "dog"], model="tiny", method=methods.names("all"), views=6, device="cpu")  # none is refused


def test_the_weight_of_a_rule_is_an_option() -> None:
    assert methods.get("dmn", weight=0.5).make_rule().weight == 0.5
    config, _ = build(override({"datasets": "dtd", "methods": "dmn"}, ["options.dmn.weight=0.5"]))
    assert [method.rule_options for method in make_methods(config)] == [{"weight": 0.5}]
    with pytest.raises(InvalidOptionError, match="weight"):
        methods.get("dmn", weight="much")


def test_names_with_steps_are_read_everywhere_alike() -> None:
    method = methods.get("kld+cats|cots")
    assert (method.name, method.file_name) == ("kld+cats | cots", "kld+cats--cots")
    assert method.about.citation == "Choi et al., 2026; Liang et al., 2026"
    assert (method.about.colour, method.about.dash) == (methods.get("kld+cats").about.colour, ":")
    assert method.cost == "all views; 1 backward and 1 forward text passes"
    assert look("kld+cats | cots") == method.about
    assert look("removed | cots") == look("tpt | removed") == methods.About()
    assert methods.get("zero-shot | sals").cost == "the plain view; no text passes"
    assert methods.get("tpt").settings().keys() == methods.get("tpt | sals").settings().keys() - {"posthoc"}
    for name in ("a | b", "a,b", "peers"):
        with pytest.raises(InvalidOptionError, match="A registered name has no bar and no comma"):
            methods.register(Method(name=name))
    with pytest.raises(InvalidOptionError, match="Name a parameter of the post-hoc step"):
        methods.get("tpt | cots", cots=3)


@pytest.mark.parametrize(("name", "weights"), [("c-tpt", (50, 20, 7)), ("o-tpt", (18, 2, 7))])
def test_published_weights(name: str, weights: tuple[float, float, float]) -> None:
    given = methods.get(name, weight=7.0).on_shift()  # a weight that was given holds on shifts too
    chosen = (methods.get(name), methods.get(name).on_shift(), given)
    assert tuple(method.terms[1].weight for method in chosen) == weights
    assert [method.terms[0].weight for method in chosen] == [1, 1, 1]


def test_published_defaults() -> None:
    method = methods.get("kld+cats")
    assert (method.steps, method.lr, method.weight_decay, method.selection) == (1, 5e-3, 0.01, 0.1)
    assert (method.t_min, method.t_max, method.detach_temperature) == (0.1, 10.0, False)


def test_a_step_that_is_given_as_a_method_is_explained() -> None:
    for name in ("cots", "cots | sals"):
        with pytest.raises(UnknownNameError, match=r"'cots' is a post-hoc step.*'zero-shot \| cots'"):
            methods.get(name)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as raised:
        Term("nope")
    assert "Did you mean" not in str(raised.value)
    with pytest.raises(UnknownNameError, match=r"Did you mean 'kld\+cats'"):
        methods.get("kld+cat")
    with pytest.raises(UnknownNameError, match="Did you mean 'steps'"):
        methods.get("tpt", step=2)
    with pytest.raises(UnknownNameError, match="Unknown option 'weight' of the method 'tpt'"):
        methods.get("tpt", weight=2.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'dispersion'"):
        Method(name="mine", terms=(Term("dispersions"),))
    with pytest.raises(UnknownNameError, match="Unknown parameter 'power' of the objective 'entropy'"):
        methods.get("tpt", entropy={"power": 2})


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("tpt", {"t_min": 0.5}, "no confidence-aware temperatures"),
        ("kld | cots", {"t_max": 5.0}, "no confidence-aware temperatures"),
        ("zero", {"detach_temperature": True}, "no confidence-aware temperatures"),
        ("zero-shot", {"lr": 0.1}, "it tunes nothing"),
        ("mta", {"steps": 2}, "it tunes nothing"),
    ],
)
def test_options_without_an_effect_are_refused(name: str, options: dict[str, object], reason: str) -> None:
    (option,) = options
    with pytest.raises(InvalidOptionError, match=rf"The option '{option}' has no effect on .*: .*{reason}.*Leave it"):
        methods.get(name, **options)
    for every in ({name: options}, {"all": options}):
        config, _ = build({"datasets": "dtd", "methods": name, "options": every})
        with pytest.raises(InvalidOptionError, match="has no effect"):
            make_methods(config)
    config, _ = build({"datasets": "dtd", "methods": ["tpt+cats", name], "options": {"all": options}})
    assert all(getattr(method, option) == options[option] for method in make_methods(config))


def test_options_that_an_objective_does_not_have_are_not_listed() -> None:
    with pytest.raises(UnknownNameError) as raised:
        methods.get("kld+cats", selction=0.2)
    assert "divergence" not in raised.value.hint
    with pytest.raises(UnknownNameError, match=r"Known: .*a-tpt, .*weight"):
        methods.get("a-tpt", wait=0.2)


@pytest.mark.parametrize("option", ["terms", "cats", "name", "about"])
def test_a_named_method_stays_itself(option: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"would make 'tpt' another method.*register"):
        methods.get("tpt", **{option: True})


def test_every_term_sees_the_methods_target() -> None:
    method = Method(
        name="both", terms=(Term("divergence"), Term("entropy", 2.0)), selection=1.0, cats=True, include_plain=False
    )
    (_, divergence), (weight, entropy) = method.objective().terms
    assert divergence.target == entropy.target == method.target()
    assert (weight, method.target().selection, method.target().include_plain) == (2.0, 1.0, False)


def test_methods_of_others_work_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.lookup, "methods", copy.deepcopy(methods.methods))
    mine = methods.register(Method(name="mine", terms=(Term("divergence"), Term("dispersion", 5.0))))
    assert (methods.names("own"), methods.names("all")[-1]) == (["mine"], "mine")
    assert methods.get("mine", weight=3.0).terms[1].weight == 3.0
    assert "divergence + 5 x dispersion" in mine.describe()
    with pytest.raises(InvalidOptionError, match="'mine' is registered already"):
        methods.register(mine)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": -1},
        {"steps": 1.5},
        {"lr": 0},
        {"lr": float("nan")},
        {"selection": 0},
        {"selection": 2},
        {"t_min": 0},
        {"t_min": 20},
        {"weight_decay": float("inf")},
    ],
)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(InvalidOptionError):
        methods.get("kld+cats", **options)


def test_weights_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="weight is -1"):
        methods.get("c-tpt", weight=-1)


@pytest.mark.parametrize(
    "options",
    [{"include_plain": "False"}, {"steps": "abc"}, {"lr": "x"}, {"steps": True}, {"entropy": 2}, {"cats": 1}],
)
def test_options_of_another_type_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        methods.get("tpt", **options)
    with pytest.raises(InvalidOptionError, match="weight"):
        methods.get("c-tpt", weight="heavy")
    with pytest.raises(InvalidOptionError, match="The option 'alpha' of the rule 'tda' is 'x'"):
        methods.get("tda", alpha="x")
    with pytest.raises(InvalidOptionError, match=r"lr is '0.3rms', and the rule 'tps' tunes no context"):
        methods.get("tps", lr="0.3rms")


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"'selection' of the post-hoc step 'cots' is \['x'\]"):
        methods.get("tpt | cots", cots={"selection": ["x"]})
    with pytest.raises(InvalidOptionError, match="'delta' of the objective 'soc' is 'x'"):
        Term("soc", options={"delta": "x"})
    with pytest.raises(UnknownNameError, match="Known: none"):
        Term("divergence", options={"weight": 1.0})


@pytest.mark.parametrize(
    ("name", "passes", "tunes"), [("zero-shot", 1, False), ("tda", 1, False), ("mta", 64, False), ("tpt", 64, True)]
)
def test_cost_relative_to_zero_shot(name: str, passes: int, tunes: bool) -> None:
    assert methods.get(name).image_passes(64) == passes
    assert methods.get(name).tunes == tunes
