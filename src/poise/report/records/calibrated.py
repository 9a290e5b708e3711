"""Runs with calibration images (``bench run --calibrate N``): they leave the metrics, and each method is calibrated.

The records of N images of each dataset (`poise.evaluate.held_out.draw`) are taken out of every group. On them, under
each seed, a calibrator is fitted to the probabilities, the quantile of prediction sets (LAC) is computed, and a
threshold on the confidence is certified. The further method "M | calibrated" has the calibrated probabilities of the
other images, their sets, and whether they are answered. Sets and threshold are of the method's own probabilities, so
that their guarantees do not depend on the calibrator, which was fitted to the same images. Where a dataset has a tree,
a second threshold is certified, for answers with its nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from poise.calibration import Tree, certify, fit_calibrator, fit_labels, quantile, scores
from poise.calibration.certify import certify_changing
from poise.calibration.conformal import SLACK
from poise.calibration.independent import label_thresholds
from poise.errors import InvalidDatasetError
from poise.evaluate.held_out import DELTA, draw
from poise.evaluate.records import entropy
from poise.metrics import RiskCoverage, answered_error, risk_coverage
from poise.report.colours import CALIBRATED, base
from poise.report.records.groups import Group, SeedCalibration, SeedRows, Setting
from poise.text import counted


def with_calibrated(groups: Iterable[Group], trees: Mapping[str, Tree] | None = None) -> tuple[Group, ...]:
    """Return the groups without their calibration images, each followed by its calibrated method.

    Args:
        groups: all methods.
        trees: of the datasets that have one: their rows then say how far the predicted class is from the correct one.
    """
    known = trees or {}
    places: dict[tuple[Setting, str], list[Group]] = defaultdict(list)
    for group in groups:
        tree = known.get(group.dataset)
        places[group.setting, group.dataset].append(group if tree is None else _with_heights(group, tree))
    return tuple(part for (_, name), members in places.items() for part in _place(members, known.get(name)))


def _with_heights(group: Group, tree: Tree) -> Group:
    """Return the group with the steps up to where the predicted and the correct class meet."""

    def added(rows: SeedRows) -> SeedRows:
        return replace(rows, columns={**rows.columns, "height": tree.heights(rows["prediction"], rows["label"])})

    return replace(group, seeds={seed: added(rows) for seed, rows in group.seeds.items()})


def _place(members: Sequence[Group], tree: Tree | None) -> list[Group]:
    """Return the groups of one setting and dataset; the calibration images are those of all its methods."""
    number = int(members[0].setting.values.get("calibrate", 0))
    if not number:
        return list(members)
    common = set.intersection(*(set(group.ids) for group in members))
    if len(common) <= number:
        raise InvalidDatasetError(
            f"All methods have answers for {len(common)} images of '{members[0].dataset}', and {number} are for "
            f"calibration.",
            hint="Finish the run (`poise bench resume-info`), or report on the other runs.",
        )
    chosen = draw(common, number)
    return [part for group in members for part in _parts(group, chosen, tree)]


def _parts(group: Group, chosen: frozenset[str], tree: Tree | None) -> tuple[Group, Group]:
    """Return a method as it is and calibrated, both on the images that were not ``chosen``."""
    held = np.array([name in chosen for name in group.ids])
    others = {seed: rows.take(np.flatnonzero(~held)) for seed, rows in group.seeds.items()}
    if group.independent:
        known = {
            seed: _fit_labels(group, rows.take(np.flatnonzero(held)), others[seed])
            for seed, rows in group.seeds.items()
        }
        return replace(group, seeds=others), replace(group, method=group.method + CALIBRATED, seeds=known)
    fitted = {
        seed: _fit(group, rows.take(np.flatnonzero(held)), others[seed], tree) for seed, rows in group.seeds.items()
    }
    seeds = {seed: rows for seed, (rows, _) in fitted.items()}
    calibration = {seed: found for seed, (_, found) in fitted.items()}
    name = group.method + CALIBRATED
    return replace(group, seeds=others), replace(group, method=name, seeds=seeds, calibration=calibration)


def _fit(group: Group, held: SeedRows, others: SeedRows, tree: Tree | None) -> tuple[SeedRows, SeedCalibration]:
    """Return the other images' rows under the calibrated method, and what was fitted."""
    if held.probs is None or others.probs is None:
        raise InvalidDatasetError(
            f"The records of '{group.method}' on '{group.dataset}' lack probabilities.",
            hint="Calibration needs all of them: repeat the run with --calibrate.",
        )
    levels, score = group.setting.values, scores.get("lac")
    calibrator = fit_calibrator(held.probs, held["label"]).calibrator
    certificate = certify(held["confidence"], held["correct"], float(levels["max_error"]), delta=DELTA)
    limit = quantile(own := score.of_labels(held.probs, held["label"]), float(levels["coverage"]))
    members = score.sets(others.probs, limit).members
    probs = calibrator.apply(others.probs.astype(np.float64))
    threshold = np.inf if certificate.threshold is None else certificate.threshold
    columns = {
        **others.columns,
        "confidence": probs.max(1),
        "entropy": entropy(probs),
        "set_sizes": members.sum(1),
        "covered": members[np.arange(len(members)), others["label"]],
        "answered": others["confidence"] >= threshold,
        **({} if tree is None else _nodes(tree, held, others, float(levels["max_error"]))),
    }
    found = SeedCalibration(
        certificate,
        len(np.unique(held["label"])),
        own,
        score.of_labels(others.probs, others["label"]),
        others["confidence"],
    )
    return replace(others, columns=columns, probs=probs.astype(np.float32)), found


def _fit_labels(group: Group, held: SeedRows, others: SeedRows) -> SeedRows:
    """Return the other images' rows of independent labels: calibrated probabilities, and certified yes and no."""
    assert held.logits is not None
    assert held.has is not None
    assert others.logits is not None
    levels, start = group.setting.values, None if held.probs is None else (1.0, 0.0)
    fit = fit_labels(held.logits, held.has, start)
    probs = 1 / (1 + np.exp(-np.clip(fit.a * others.logits + fit.b, -500, 500)))
    unit = max(np.abs(held.logits).max(), np.abs(others.logits).max(), 1e-9)  # thresholds are of any score up to 1
    precision, recall = 1 - float(levels["max_error"]), float(levels["coverage"])
    limits = label_thresholds(held.logits / unit, held.has, precision, recall, DELTA)
    return replace(others, probs=probs.astype(np.float32), outcomes=limits.codes(others.logits / unit))


def _nodes(tree: Tree, held: SeedRows, others: SeedRows, max_error: float) -> dict[str, np.ndarray]:
    """Return the depth of the answers in the tree, from a threshold that is certified, and whether they are right."""
    assert held.probs is not None
    assert others.probs is not None
    found = certify_changing(*tree.thresholds(held.probs, held["label"]), max_error, delta=DELTA)
    path = tree.descend(others.probs)
    depth = path.depth_at(np.inf if found.threshold is None else found.threshold)
    last = path.nodes[np.arange(len(depth)), np.maximum(depth - 1, 0)]
    return {"depth": depth, "right": (depth > 0) & tree.members[last, others["label"]]}


LEVELS = np.linspace(0.5, 0.99, 50)  # coverages that are drawn


def coverage_curve(group: Group) -> np.ndarray:
    """Return the coverage [50] that sets for each of `LEVELS` have, before empty sets get the top label."""
    found = (group.calibration or {}).values()
    shares = [
        [(each.other_scores <= quantile(each.scores, level) + SLACK).mean() for level in LEVELS] for each in found
    ]
    return np.asarray(np.mean(shares, axis=0))


def coverage_spread(group: Group) -> np.ndarray:
    """Return the standard deviation [50] of a seed's coverage: of the quantile, and of the share among the others."""
    images = int(group.setting.values["calibrate"])
    return np.sqrt(LEVELS * (1 - LEVELS) * (1 / images + 1 / group.n))


def certified_curve(group: Group) -> tuple[RiskCoverage, float, float]:
    """Return the curve of the method's own confidences, the share that is answered, and its share of wrong answers."""
    own = np.concatenate([each.confidence for each in (group.calibration or {}).values()])
    correct = group.pooled["correct"].astype(bool)
    answered = np.concatenate([rows["answered"] for rows in group.seeds.values()])
    return risk_coverage(own, correct), float(answered.mean()), answered_error(answered, correct)


def notes(groups: Sequence[Group], classes: Callable[[str], int]) -> list[str]:
    """Return sentences on the calibration of these groups; ``classes`` gives the number of classes of a dataset."""
    found = [(group, seed, each) for group in groups for seed, each in (group.calibration or {}).items()]
    if not found:
        return _label_notes(groups)
    levels = groups[0].setting.values
    coverage, error, sure = (f"{100 * level:g} %" for level in (levels["coverage"], levels["max_error"], 1 - DELTA))
    sentences = [
        f"Metrics leave out {levels['calibrate']} images of each dataset: on them 'method{CALIBRATED}' was fitted, "
        f"that is, a calibrator for the probabilities, prediction sets with a coverage of {coverage}, and a threshold "
        f"of confidence with at most {error} errors among the answered images (certified with confidence {sure})."
    ]
    absent = {group.dataset: classes(group.dataset) - each.classes for group, _, each in found}
    if lacking := [f"{name} {number}" for name, number in absent.items() if number > 0]:
        sentences.append(f"Classes without any calibration image: {', '.join(lacking)}.")
    if failed := Counter(
        f"{base(group.method)} on {group.dataset}" for group, _, each in found if each.certificate.threshold is None
    ):
        sentences.append(f"No threshold could be certified, and nothing is answered, for: {_listed(failed)}.")
    return sentences + _label_notes(groups)


def _label_notes(groups: Sequence[Group]) -> list[str]:
    """Return a sentence on independent labels, if some groups have any."""
    some = [group for group in groups if group.independent]
    if not some:
        return []
    levels = some[0].setting.values
    names = ", ".join(dict.fromkeys(group.dataset for group in some))
    said = f"{names}: any number of labels may apply, and images are composed of two photos each."
    if levels.get("calibrate"):
        said += (
            f" On {levels['calibrate']} of them, the probability of each label was fitted, and a yes that is right in "
            f"{100 * (1 - levels['max_error']):g} % and a no that spares {100 * levels['coverage']:g} % of the images "
            f"with the label were certified (all labels together with confidence {100 * (1 - DELTA):g} %)."
        )
    return [said]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({counted(count, 'seed')})" for name, count in counts.items())
