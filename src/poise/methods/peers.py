"""Methods of other papers that answer each image by itself, one row each."""

from __future__ import annotations

from poise.methods.lookup import register
from poise.methods.method import About, Method

for _method in (
    Method(name="mta", rule="mta", about=About(
        description="the logits of a robust mean of all views' features", citation="Zanella and Ben Ayed, 2024",
        colour="#117733", order=21, group="peers",
    )),
):  # fmt: skip
    register(_method)
