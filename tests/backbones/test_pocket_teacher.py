"""The second stage of pocket: its teacher against a plain oracle, and what its two parts may change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

TOOLS = Path(__file__).parents[2] / "tools" / "pocket"
DOG, ANIMAL, PUG = 1000, 1001, 1002  # rows behind the names of the 1000 classes


@pytest.fixture
def distil(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The scripts of tools/pocket import each other by name, as when one of them is run."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(TOOLS))
    import distil

    yield distil
    for name in set(sys.modules) - before:
        if str(TOOLS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def noun(text: str, token: int, classes: list[int]) -> dict[str, Any]:
    cover = [(c, 1.0) for c in classes]
    return {"text": text, "ids": [token], "cover": cover, "weight": 1.0, "word": text, "pair": False}


@pytest.fixture
def nouns() -> dict[str, Any]:
    """Names of the classes, nouns that cover two, three and one of them, and four that cover none."""
    rows = [noun(f"name {c}", 2000 + c, [c]) for c in range(1000)]
    rows += [noun("dog", 4000, [1, 2]), noun("animal", 4001, [1, 2, 3]), noun("pug", 4002, [1])]
    nodes = [
        {"children": [1, 4], "size": 4, "rows": [ANIMAL]},
        {"children": [2, 3], "size": 2, "rows": [DOG]},
        *({"children": [], "size": 1, "rows": [c]} for c in (1, 2, 3)),
    ]
    distractors, templates = [[5000], [5001], [5002], [5003]], [([320, 1125], [269])]
    return {"rows": rows, "nodes": nodes, "distractors": distractors, "templates": templates}


def teacher_of(distil: ModuleType, nouns: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old, others, images = (
        F.normalize(torch.randn(n, 8, generator=generator), dim=-1) for n in (len(nouns["rows"]), 4, 4)
    )
    return distil.Teacher(nouns, old, others), images


def test_classes_go_to_the_narrowest_label_and_the_rest_stays(distil: ModuleType, nouns: dict[str, Any]) -> None:
    teacher, images = teacher_of(distil, nouns)
    classes = F.one_hot(torch.tensor([1, 3, 10, 10]), 1000).float()
    found, known = teacher(distil.LabelSet([DOG, ANIMAL], [-1, -1]), {"features": images, "classes": classes})
    torch.testing.assert_close(known, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.4]))  # one class of two against one of three
    torch.testing.assert_close(found[1], torch.tensor([0.0, 1.0]))
    before = distil.SCALE * images[2:] @ teacher.old[[DOG, ANIMAL]].T
    torch.testing.assert_close(found[2:], before.softmax(-1))  # no label covers the class: as the first stage answers


def test_a_label_that_covers_nothing_gets_what_it_has_beside_the_names(
    distil: ModuleType, nouns: dict[str, Any]
) -> None:
    teacher, images = teacher_of(distil, nouns)
    classes = torch.zeros(4, 1000)
    classes[:, [1, 2, 3, 10]] = torch.tensor(
        [[0.7, 0.2, 0.1, 0.0], [0.0, 0.0, 0.9, 0.1], [0.2, 0.2, 0.2, 0.4], [0, 0, 0, 1]]
    )
    found, known = teacher(distil.LabelSet([DOG, 3, -1], [-1, -1, 2]), {"features": images, "classes": classes})
    old, first_other = teacher.old.double().numpy(), len(nouns["rows"])
    for n in range(4):
        p, image = classes[n].double().numpy(), images[n].double().numpy()
        before = [distil.SCALE * image @ old[at] for at in (DOG, 3, first_other + 2)]
        mass = [p[1] + p[2], p[3]]
        name = [sum(p[c] * distil.SCALE * image @ old[c] for c in cover) for cover in ((1, 2), (3,))]
        beside = np.exp([name[0] + (1 - mass[0]) * before[0], name[1] + (1 - mass[1]) * before[1], before[2]])
        other = beside[2] / beside.sum()
        covered = sum(mass)
        sure = covered**2 / (covered**2 + distil.OPEN * (1 - covered) ** 2)
        told = [m / covered if covered else 0.0 for m in mass]
        inside = np.exp(before[:2]) / np.exp(before[:2]).sum()
        wanted = [(1 - other) * (sure * t + (1 - sure) * i) for t, i in zip(told, inside, strict=True)]
        np.testing.assert_allclose(found[n].numpy(), [*wanted, other], atol=1e-5)
        assert float(known[n]) == pytest.approx(sure, abs=1e-6)


def small_stage(distil: ModuleType, nouns: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A first stage of one small layer, and the directions of its nouns."""
    from tower import TextTower

    monkeypatch.setattr(distil, "NEAR", 2)
    torch.manual_seed(0)
    tower = TextTower(32, 2, 1, 48).eval()
    names = distil.encode(tower, distil.standard(nouns, [row["ids"] for row in nouns["rows"]]), "cpu")
    seen = torch.tensor([1, 2, 3] * 20)
    photos = {
        "features": F.normalize(names[seen] + 0.1 * torch.randn(60, 48), dim=-1),
        "classes": F.one_hot(seen, 1000).float(),
        "image": torch.arange(60),
        "view": torch.zeros(60, dtype=torch.long),
    }
    return tower, distil.Directions(tower, nouns, photos, distil.Settings(steps=8, keep=0.1), "cpu")


def test_directions_and_tower_learn_what_moves_and_keep_the_rest(
    distil: ModuleType, nouns: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import held_back
    import refit

    tower, directions = small_stage(distil, nouns, monkeypatch)
    found = directions.learn()
    labels = distil.LabelSet([DOG, 3, -1], [-1, -1, 0])
    target, _ = directions.teacher(labels, directions.seen)

    def divergence(nouns: torch.Tensor) -> float:
        table = torch.cat([nouns, directions.others])[directions.teacher.at(labels)]
        return float(distil.divergence(distil.SCALE * directions.seen["features"] @ table.T, target).mean())

    assert divergence(found) < divergence(directions.first)
    assert set(range(len(found))) - set(directions.free) == {PUG}  # one other name of a class
    torch.testing.assert_close(found[PUG], directions.first[PUG])
    ids = {
        "words": [[4000], [5000], [5001]],
        "plurals": [[5002]],
        "pieces": [[5003]],
        "gloss": [[5004, 5005]],
        "adjectives": [[6000]],
        "second": [[6001]],
        "standard": nouns["templates"][0],
        "plain": [([6002], [])],
        "looks": [("dark", [6003], [])],
    }
    corpus = {"ids": ids, "words": ["dog", "x", "y"], "plurals": ["xs"], "pieces": ["z"]}
    corpus |= {"senses": [[(0, 1)], [(1, 0)], [(2, 0)]], "photographed": [1]}
    few = refit.Settings(steps=1, batch=64)
    with torch.no_grad():  # where nothing has moved, there is nothing to learn
        assert max(map(float, refit.Refit(tower, corpus, directions, directions.first, few).loss(0))) < 1e-8
    second = refit.Refit(tower, corpus, directions, found, few)
    assert second.others(corpus)["words"] == ([[5000], [5001]], [3.0, 1.0])  # a dog moves, the others are kept
    moved = second.moved @ directions.basis
    torch.testing.assert_close(moved[: len(found)], found - directions.first)
    assert not moved[len(found) :].any()
    second.train()
    assert "same as before" in held_back.report(tower, directions, tmp_path)


def test_sets_of_everyday_nouns_begin_with_those_that_cover_several_classes(
    distil: ModuleType, nouns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import label_sets

    nouns["rows"][ANIMAL]["weight"] = 3.0
    monkeypatch.setattr(label_sets, "COMMON", 3)
    drawer = label_sets.Drawer(nouns, [], lambda row: True)
    assert drawer.common == [ANIMAL, DOG, 0]
    assert set(drawer(7, "common", distractors=False).rows) <= {ANIMAL, DOG, 0}
