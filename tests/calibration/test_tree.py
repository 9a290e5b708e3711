"""Trees of labels: what is refused, sums and paths against plain oracles, and the guarantee over many draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from poise.calibration import Tree, calibrate_probabilities, upper_bound
from poise.calibration.certify import NEVER, certify, certify_changing, first_rank
from poise.errors import InvalidLabelsError

LABELS = ["tabby", "siamese", "beagle", "poodle", "car"]
PARENTS = {"tabby": "cat", "siamese": "cat", "beagle": "dog", "poodle": "dog", "cat": "animal", "dog": "animal"}
PATHS = ["animal > cat > tabby", "animal > cat > siamese", "animal > dog > beagle", "animal > dog > poodle", "car"]


def random_tree(labels: int, seed: int) -> Tree:
    """A tree with branches of random sizes and depths."""
    generator = np.random.default_rng(seed)
    names, paths, count = [f"label {at}" for at in range(labels)], [], itertools.count()

    def grow(rows: list[int], above: list[str]) -> None:
        if len(rows) == 1 or len(above) > 4 or (above and generator.random() < 0.2):
            paths.extend((row, " > ".join([*above, names[row]])) for row in rows)
            return
        cuts = np.sort(generator.choice(np.arange(1, len(rows)), min(len(rows) - 1, generator.integers(1, 4)), False))
        for part in np.split(np.array(rows), cuts):
            grow(part.tolist(), [*above, f"node {next(count)}"])

    grow(list(range(labels)), [])
    return Tree(names, [path for _, path in sorted(paths)])


def test_parents_and_paths_give_the_same_tree() -> None:
    one, other = Tree(LABELS, {**PARENTS, "car": ""}), Tree(LABELS, PATHS)
    assert one.paths == other.paths == tuple(PATHS)
    assert set(one.names) == {*LABELS, "cat", "dog", "animal"}
    assert Tree(["a_b", "c"], ["x y > a b", "x_y > c"]).paths == ("x y > a_b", "x y > c")  # underscores are spaces


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        (PARENTS, "Labels have no parent: 'car'"),
        ({**PARENTS, "car": "", "animal": "cat"}, "Parents form a cycle: cat > animal > cat"),
        ({**PARENTS, "car": "car"}, "Parents form a cycle: car > car"),
        ({**PARENTS, "car": "tabby"}, "Labels are parents of other labels: 'tabby'"),
        ({**PARENTS, "car": "", "van": "vehicle"}, "No label is below these nodes: 'van', 'vehicle'|'vehicle', 'van'"),
        ([*PATHS, "animal > dog > tabby"], "'tabby' has two parents: 'cat' and 'dog'"),
        ([*PATHS[:4], "animal >  > car"], "A node of the tree has no name"),
        ({**PARENTS, "car": "a > b"}, "names with '>': 'a > b'"),
        ("cat > tabby", "parents is 'cat > tabby'"),
    ],
)
def test_what_is_no_tree_is_refused(parents: Any, message: str) -> None:
    with pytest.raises(InvalidLabelsError, match=message):
        Tree(LABELS, parents)


@pytest.mark.parametrize("labels", [2, 5, 40])
def test_sums_and_paths_equal_a_plain_recursion(labels: int) -> None:
    tree = random_tree(labels, seed=labels)
    generator = np.random.default_rng(0)
    probs, truth = generator.dirichlet(np.full(labels, 0.3), 30), generator.integers(0, labels, 30)
    lines = [path.split(" > ") for path in tree.paths]
    table, found = tree.probabilities(probs), tree.descend(probs)
    answered, wrong = tree.thresholds(probs, truth)
    for row in range(30):
        sums = {
            name: math.fsum(p for p, line in zip(probs[row], lines, strict=True) if name in line) for name in tree.names
        }
        np.testing.assert_allclose(table[row], [sums[name] for name in tree.names], atol=1e-12)
        path: list[str] = []
        while not path or path[-1] not in tree.labels:
            below = dict.fromkeys(line[len(path)] for line in lines if line[: len(path)] == path)
            path.append(max(below, key=lambda name: sums[name]))
        while len(path) > 1 and all(line[:1] == path[:1] for line in lines):  # a node with all labels is no answer
            lines_below, path = [line[1:] for line in lines], path[1:]
            assert sums[path[0]] <= 1
            if not all(line[:1] == path[:1] for line in lines_below):
                break
        assert [tree.names[node] for node in found.nodes[row] if node >= 0] == path
        assert answered[row] == pytest.approx(sums[path[0]], abs=1e-12)
        off = [sums[name] for name in path if name not in lines[truth[row]]]
        assert wrong[row] == pytest.approx(off[0] if off else NEVER, abs=1e-12)
        for threshold in (0.2, 0.5, 0.9):
            reached = [name for name in path if sums[name] >= threshold]
            assert tree.answers(probs[row : row + 1], threshold) == (reached[-1] if reached else None,)


def test_a_node_above_all_labels_is_never_an_answer() -> None:
    tree = Tree(["a", "b"], ["thing > being > a", "thing > being > b"])
    assert tree.answers(np.array([[0.5, 0.5]]), 0.9) == (None,)
    assert tree.answers(np.array([[0.95, 0.05]]), 0.9) == ("a",)
    assert tree.smallest(np.array([True, True])) == [tree.names.index("thing")]


@pytest.mark.parametrize("seed", range(4))
def test_sets_are_written_with_the_fewest_nodes(seed: int) -> None:
    tree = random_tree(7, seed)
    for inside in itertools.product([False, True], repeat=7):
        members = np.array(inside)
        if not members.any():
            continue
        found = tree.smallest(members)
        np.testing.assert_array_equal(tree.members[found].sum(0), members.astype(int))  # exactly these, each once
        usable = [node for node in range(len(tree.names)) if not (tree.members[node] & ~members).any()]
        fewer = itertools.combinations(usable, len(found) - 1)
        assert not any((tree.members[list(nodes)].any(0) == members).all() for nodes in fewer)


def test_steps_up_to_a_common_node() -> None:
    tree = Tree(LABELS, PATHS)
    assert tree.heights(np.array([0, 0, 0, 0]), np.array([0, 1, 2, 4])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_changing_answers_equal_a_plain_search(seed: int) -> None:
    generator = np.random.default_rng(seed)
    images = int(generator.integers(30, 120))
    answered = generator.integers(1, 20, images) / 20
    wrong = np.where(generator.random(images) < 0.1, generator.integers(0, 20, images) / 20, NEVER)
    wrong = np.minimum(answered, wrong)
    found, expected = certify_changing(answered, wrong, 0.2, start=first_rank(images, 0.2)), None
    for level in sorted({*answered, *wrong} - {NEVER}, reverse=True):
        count, errors = int((answered >= level).sum()), int((wrong >= level).sum())
        if count < first_rank(images, 0.2):
            continue
        if upper_bound(errors, count, 0.05) > 0.2 + 1e-12:
            break
        expected = level
    assert found.threshold == expected


def test_answers_that_do_not_change_are_certified_as_before() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(200)
    correct = generator.random(200) < 0.5 + confidence / 2
    wrong = np.where(correct, NEVER, confidence)
    assert certify_changing(confidence, wrong, 0.2) == certify(confidence, correct, 0.2)


def population(labels: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The thresholds of 20,000 images: "sure": probabilities are too sure; "odd": the surest are wrong most often."""
    generator = np.random.default_rng(labels)
    tree, images = random_tree(labels, seed=1), 20_000 if labels < 100 else 4_000
    logits = generator.normal(0, 3.0, (images, labels))
    sharper = {"right": 1.0, "sure": 1.6, "odd": 1.0}[kind]
    true = np.exp(logits - logits.max(1, keepdims=True))
    true /= true.sum(1, keepdims=True)
    probs = np.exp(sharper * (logits - logits.max(1, keepdims=True)))
    probs /= probs.sum(1, keepdims=True)
    truth = (np.cumsum(true, 1) < generator.random((images, 1))).sum(1).clip(max=labels - 1)
    answered, wrong = tree.thresholds(probs, truth)
    if kind == "odd":
        wrong = np.where((answered > np.quantile(answered, 0.7)) & (generator.random(images) < 0.3), answered, wrong)
    return answered, wrong


def exceeded(answered: np.ndarray, wrong: np.ndarray, images: int, draws: int, max_error: float) -> tuple[int, int]:
    """How many of the draws certify a threshold, and how many of those exceed the error in the population."""
    generator = np.random.default_rng(images)
    first, bad = np.sort(answered), np.sort(wrong)
    certified = failed = 0
    for _ in range(draws):
        drawn = generator.integers(0, len(answered), images)
        found = certify_changing(answered[drawn], wrong[drawn], max_error)
        if found.threshold is not None:
            certified += 1
            answers = len(first) - np.searchsorted(first, found.threshold)
            errors = len(bad) - np.searchsorted(bad, found.threshold)
            failed += errors > max_error * answers
    return certified, failed


@pytest.mark.parametrize(("labels", "images", "kind"), [(5, 50, "sure"), (50, 200, "sure"), (50, 100, "odd")])
def test_certified_errors_of_nodes_are_rarely_exceeded(labels: int, images: int, kind: str) -> None:
    certified, failed = exceeded(*population(labels, kind), images, 400, 0.2)
    assert failed <= stats.binom(400, 0.05).ppf(0.9999)
    assert certified > 20 or kind == "odd"  # the test is not idle


@pytest.mark.slow
@pytest.mark.parametrize("labels", [5, 50, 500])
@pytest.mark.parametrize("images", [20, 50, 100, 200])
@pytest.mark.parametrize("kind", ["right", "sure", "odd"])
def test_certified_errors_of_nodes_in_many_draws(labels: int, images: int, kind: str) -> None:
    answered, wrong = population(labels, kind)
    for max_error in (0.1, 0.2, 0.3):
        assert exceeded(answered, wrong, images, 4000, max_error)[1] <= stats.binom(4000, 0.05).ppf(0.9999)


def test_a_calibration_of_probabilities_answers_with_nodes() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(5, 0.1), 300)
    truth = np.array([generator.choice(5, p=row) for row in probs])
    calibration = calibrate_probabilities(probs[:200], truth[:200], labels=LABELS, parents=PATHS)
    plain = calibrate_probabilities(probs[:200], truth[:200], labels=LABELS)
    applied = calibration.apply(probs[200:], max_error=0.2)
    assert applied.nodes is not None
    assert applied.answered is not None
    assert [node is not None for node in applied.nodes] == applied.answered.tolist()
    flat = plain.apply(probs[200:], max_error=0.2).answered
    assert flat is not None
    assert applied.answered.sum() > flat.sum()  # "cat" where the labels alone are not sure enough
    read = type(calibration).from_dict(calibration.to_dict())
    assert read.tree is not None
    assert read.tree.paths == tuple(PATHS)
    assert read.apply(probs[200:], max_error=0.2).nodes == applied.nodes


def test_files_with_half_a_tree_are_refused() -> None:
    calibration = calibrate_probabilities([[0.9, 0.1], [0.2, 0.8]] * 20, [0, 1] * 20, parents=["a > 0", "b > 1"])
    for change in ({"parents": []}, {"parents": ["a > 0"]}, {"parents": [1, 2]}):
        values = calibration.to_dict()
        values["conditions"] |= change
        with pytest.raises(ValueError, match="checksum"):
            type(calibration).from_dict(values)
    values = calibration.to_dict()
    part = values["methods"]["given"]
    for nodes, message in (([[0.5] * 40, [0.6] * 40], "nothing is answered"), ([[0.5] * 40, [0.1]], "lengths")):
        with pytest.raises(ValueError, match=message):
            type(calibration.methods["given"]).from_dict({**part, "nodes": nodes})
