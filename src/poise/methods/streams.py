"""Methods of other papers that remember images: those before, or a few labelled ones. One row each."""

from __future__ import annotations

from poise.methods.lookup import register
from poise.methods.method import About, Method

for _method in (
    Method(
        name="tda",
        rule="tda",
        about=About(
            description="logits corrected by caches of earlier images' features",
            citation="Karmanov et al., 2024",
            link="https://arxiv.org/abs/2403.18293",
            colour="#B0413E",
            order=40,
            group="streams",
        ),
    ),
    Method(
        name="boostadapter",
        rule="boostadapter",
        about=About(
            description="tda with the image's own confident views in the cache",
            citation="Zhang et al., 2024 (BoostAdapter)",
            link="https://arxiv.org/abs/2410.15430",
            colour="#B0413E",
            dash="--",
            order=41,
            group="streams",
        ),
    ),
    Method(
        name="dmn",
        rule="dmn",
        about=About(
            description="the mean of two predictions, under the texts and under prototypes of earlier images",
            citation="Zhang et al., 2024 (DMN)",
            link="https://arxiv.org/abs/2403.17589",
            colour="#999933",
            dash="-.",
            order=42,
            group="streams",
        ),
    ),
    Method(
        name="onzeta",
        rule="onzeta",
        about=About(
            description="a mean of two predictions, under the texts with a learned prior and under learned proxies",
            citation="Qian and Hu, 2024",
            link="https://arxiv.org/abs/2408.13320",
            colour="#AA4499",
            dash="-.",
            order=43,
            group="streams",
        ),
    ),
    Method(
        name="tip-adapter",
        rule="tip-adapter",
        about=About(
            description="logits corrected by the features of a few labelled images per class",
            citation="Zhang et al., 2022",
            link="https://arxiv.org/abs/2207.09519",
            colour="#661100",
            dash="-.",
            order=50,
            group="few-shot",
        ),
    ),
):
    register(_method)
