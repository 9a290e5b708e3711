"""Numbers that the published DynaPrompt and PromptAlign code gave on a small CLIP in float64, equalled."""

from __future__ import annotations

import pytest
import torch
from oracles import published

from poise import methods
from poise.prompts import tokenise
from poise.tuning.dynaprompt import DynaPrompt

STREAMS = ["warm-tpt", "warm-c-tpt", "stable-tpt", "stable-c-tpt"]


@pytest.mark.parametrize("name", STREAMS)
def test_dynaprompt_streams(name: str) -> None:
    """The stream with two steps is left out: the published code picks again at the second one, and poise doesn't."""
    facts, given, wanted = published.facts(), published.tensors("dyna/"), published.tensors(f"dyna/{name}/")
    settings, encoder = facts["dyna"], published.encoder()
    own = {name: settings[name] for name in ("lr", "weight_decay", "selection")}
    weight = {"weight": settings["c_tpt_weight"]} if name.endswith("c-tpt") else {}
    method = methods.get(name.partition("-")[2], **own, **weight)
    classes = tokenise(encoder, facts["classes"], settings["template"])
    tuner = DynaPrompt(encoder, classes, method, settings["slots"], "as-published")
    torch.testing.assert_close(tuner.texts.start.context[0], given["base"], atol=1e-12, rtol=0)
    if name.startswith("warm"):
        tuner.memory.reset(given["warm_values"], **settings["warm"])
    memory = []
    for image, expected in enumerate(settings["streams"][name]):
        answer = tuner.predict(given["features"][image][None])
        assert tuner.picked == [expected["picked"]], image
        assert answer.selected[0].tolist() == expected["views"], image
        assert {"order": tuner.memory.order, "uses": tuner.memory.uses} == expected["after"], image
        torch.testing.assert_close(answer.losses[0], wanted["losses"][image], atol=1e-9, rtol=0)
        torch.testing.assert_close(answer.logits[0], wanted["logits"][image], atol=1e-6, rtol=0)
        memory.append(tuner.memory.values)
    torch.testing.assert_close(torch.stack([memory[at] for at in (0, 9, 19)]), wanted["memory"], atol=1e-7, rtol=0)
