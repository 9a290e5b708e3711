"""Methods of other papers that answer each image by itself, one row each."""

from __future__ import annotations

from poise.methods.lookup import register
from poise.methods.method import About, Method, Term

for _method in (
    Method(
        name="zero",
        rule="zero",
        selection=0.3,
        about=About(
            description="each confident view votes for its label",
            citation="Farina et al., 2024",
            link="https://arxiv.org/abs/2405.18330",
            colour="#88CCEE",
            order=20,
            group="peers",
        ),
    ),
    Method(
        name="mta",
        rule="mta",
        about=About(
            description="the logits of a robust mean of all views' features",
            citation="Zanella and Ben Ayed, 2024",
            link="https://arxiv.org/abs/2405.02266",
            colour="#117733",
            order=21,
            group="peers",
        ),
    ),
    Method(
        name="tps",
        rule="tps",
        about=About(
            description="shifts the class texts' features to lower the confident views' entropy",
            citation="Sui et al., 2025",
            link="https://arxiv.org/abs/2403.12952",
            colour="#332288",
            order=22,
            group="peers",
        ),
    ),
    Method(
        name="a-tpt",
        terms=(Term("entropy"), Term("a-tpt", 80.0, 10.0, {"sign": "apart"})),
        about=About(
            description="tpt with a term that enlarges the angle to the nearest class text, as described",
            citation="Ahamed et al., 2026",
            link="https://arxiv.org/abs/2510.26441",
            colour="#882255",
            order=23,
            group="peers",
        ),
    ),
    Method(
        name="a-tpt-fg",
        terms=(Term("entropy"), Term("a-tpt", 80.0, options={"sign": "together"})),
        about=About(
            description="a-tpt with the opposite sign, as released for fine-grained datasets",
            citation="Ahamed et al., 2026",
            link="https://arxiv.org/abs/2510.26441",
            colour="#882255",
            dash="--",
            order=24,
            group="peers",
        ),
    ),
    Method(
        name="soc",
        terms=(Term("entropy"), Term("soc", 1.0, options={"delta": 0.5})),
        about=About(
            description="tpt with a Huber loss of the class texts' cosines; published weight and delta are not known",
            citation="Fillioux et al., 2026",
            link="https://arxiv.org/abs/2601.08617",
            colour="#DDCC77",
            order=25,
            group="peers",
        ),
    ),
    Method(
        name="penalty",
        terms=(Term("entropy"), Term("penalty", 10.0, options={"reference": "plain"})),
        about=About(
            description="tpt with a penalty on logits outside the zero-shot range",
            citation="Murugesan et al., 2024",
            link="https://arxiv.org/abs/2407.13588",
            colour="#AA4499",
            order=26,
            group="peers",
        ),
    ),
    Method(
        name="zs-norm",
        terms=(Term("zs-norm", options={"reference": "plain"}),),
        about=About(
            description="tpt on logits that are rescaled to the zero-shot range",
            citation="Murugesan et al., 2024",
            link="https://arxiv.org/abs/2407.13588",
            colour="#AA4499",
            dash="--",
            order=27,
            group="peers",
        ),
    ),
):
    register(_method)
