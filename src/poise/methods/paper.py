"""The paper's methods, and a part of its objective that its tables leave out, one row each."""

from __future__ import annotations

from poise.methods.lookup import register
from poise.methods.method import About, Method, Term

for _method in (
    Method(
        name="zero-shot",
        steps=0,
        about=About(
            description="the template as it is; nothing is tuned",
            citation="Radford et al., 2021",
            link="https://arxiv.org/abs/2103.00020",
            colour="#000000",
            dash=":",
            order=0,
            group="paper",
        ),
    ),
    Method(
        name="tpt",
        terms=(Term("entropy"),),
        about=About(
            description="minimises the entropy of the confident views' mean prediction",
            citation="Shu et al., 2022",
            link="https://arxiv.org/abs/2209.07511",
            colour="#D55E00",
            order=1,
            group="paper",
        ),
    ),
    Method(
        name="c-tpt",
        terms=(Term("entropy"), Term("dispersion", 50.0, 20.0)),
        about=About(
            description="tpt with a term that keeps the class texts apart",
            citation="Yoon et al., 2024",
            link="https://arxiv.org/abs/2403.14119",
            colour="#E69F00",
            dash="--",
            order=2,
            group="paper",
        ),
    ),
    Method(
        name="o-tpt",
        terms=(Term("entropy"), Term("orthogonality", 18.0, 2.0)),
        about=About(
            description="tpt with a term that makes the class texts orthogonal",
            citation="Sharifdeen et al., 2025",
            link="https://arxiv.org/abs/2503.12096",
            colour="#CC79A7",
            dash="-.",
            order=3,
            group="paper",
        ),
    ),
    Method(
        name="tpt+cats",
        terms=(Term("entropy"),),
        cats=True,
        about=About(
            description="tpt with confidence-aware temperatures (ablation)",
            citation="Choi et al., 2026",
            colour="#56B4E9",
            dash="--",
            order=4,
            group="paper",
        ),
    ),
    Method(
        name="kld",
        terms=(Term("divergence"),),
        about=About(
            description="KL(p_aug || p) without temperatures (ablation)",
            citation="Choi et al., 2026",
            colour="#009E73",
            dash="-.",
            order=5,
            group="paper",
        ),
    ),
    Method(
        name="kld+cats",
        terms=(Term("divergence"),),
        cats=True,
        about=About(
            description="KL(p_aug || p) with confidence-aware temperatures: the paper's method, and the default",
            citation="Choi et al., 2026",
            colour="#0072B2",
            order=6,
            group="paper",
        ),
    ),
    Method(
        name="ce",
        terms=(Term("cross-entropy"),),
        about=About(
            description="the cross-entropy H(p_aug, p) alone: kld without its entropy term (ablation)",
            citation="Choi et al., 2026",
            colour="#44AA99",
            dash=":",
            order=7,
            group="ablation",
        ),
    ),
):
    register(_method)
