"""What an exported graph computes after the image tower: a method's answer, its calibration, sets and decisions.

Written in torch, so that it can be traced. The reference for the calibrator is `poise.calibration`, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from poise.backbones.encoder import Encoder
from poise.calibration import Calibrator, Tree
from poise.calibration.calibrators import CLIP, LEAST, TINY
from poise.calibration.conformal import SLACK, lowest_probability
from poise.calibration.independent import LabelFit, LabelThresholds
from poise.methods import Method
from poise.rules import Rule
from poise.rules.rule import CosineHead

RULES = ("zero", "mta")  # rules that can be traced; the others tune, remember images, or read files


@dataclass(frozen=True)
class CalibrationLimits:
    """The numbers of a calibration that sets and decisions compare with; None where they were not asked for."""

    quantile: float | None = None  # of the LAC scores of the calibration images
    tree: Tree | None = None  # whose nodes are answered from the threshold on
    threshold: float | None = None  # lowest confidence before calibration that is answered


class ExportedClassifier(nn.Module):
    """Maps normalised views [B, V, 3, S, S] to the outputs of an ONNX file, in the order of `outputs`."""

    def __init__(
        self,
        encoder: Encoder,
        text_features: Tensor,
        method: Method,
        calibrator: Calibrator | None,
        limits: CalibrationLimits,
        labels: LabelHead | None = None,
    ) -> None:
        super().__init__()
        self.text_features = nn.Buffer(text_features)  # [C, D]
        self.encoder, self.calibrator, self.limits = encoder, calibrator, limits
        self.head = CosineHead(encoder.scale, encoder.bias)
        self.rule: Rule | None = method.make_rule() if method.rule else None
        self.nodes = None if limits.tree is None else Nodes(limits.tree)
        self.labels = labels

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        if self.labels is not None:
            return ["features", "probabilities", *(["yes", "no"] if self.labels.thresholds is not None else [])]
        asked = {"in_set": self.limits.quantile, "answered": self.limits.threshold}
        if self.limits.tree is not None:
            asked["node"] = self.limits.threshold
        return ["features", "raw_probabilities", "probabilities", *(name for name in asked if asked[name] is not None)]

    def forward(self, views: Tensor) -> tuple[Tensor, ...]:
        """Return features [B, V, D], probabilities [B, C] before and after calibration, sets [B, C], decisions [B].

        With a tree, the last output is the position of the answered node [B] in `Tree.names`, or -1.
        """
        features = self.encoder.trace(views)
        if self.labels is not None:
            return features, *self.labels(self.head.outputs(features, self.text_features[None]).logits[:, 0])
        raw = self._answer(features)
        found = [features, raw, raw if self.calibrator is None else calibrated(self.calibrator, raw)]
        if self.limits.quantile is not None:
            found.append(in_set(raw, self.limits.quantile))
        if self.limits.threshold is not None and self.nodes is not None:
            node = self.nodes(raw, self.limits.threshold)
            found += [node >= 0, node]
        elif self.limits.threshold is not None:
            found.append(raw.amax(-1) >= self.limits.threshold)
        return tuple(found)

    def _answer(self, features: Tensor) -> Tensor:
        """Return the method's probabilities [B, C]; where a rule's are not finite, those of zero-shot."""
        out = self.head.outputs(features, self.text_features[None])
        plain = out.logits[:, 0].softmax(-1)
        if self.rule is None:
            return plain
        probs = self.rule(out, self.head).logits.softmax(-1)
        return torch.where((probs - probs).abs().sum(-1, keepdim=True) == 0, probs, plain)


class LabelHead(nn.Module):
    """Probabilities of independent labels [B, C], and whether each is answered with yes or with no [B, C]."""

    def __init__(self, scale: float, bias: float, fit: LabelFit | None, thresholds: LabelThresholds | None) -> None:
        super().__init__()
        self.scale, self.bias, self.thresholds = scale, bias, thresholds
        self.a = nn.Buffer(torch.from_numpy(np.ones(1) if fit is None else fit.a))
        self.b = nn.Buffer(torch.from_numpy(np.zeros(1) if fit is None else fit.b))

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return them for the logits [B, C]."""
        wide = logits.double()
        probs = (wide * self.a + self.b).sigmoid().to(logits.dtype)
        if self.thresholds is None:
            return (probs,)
        cosines = (wide - self.bias) / self.scale
        yes = cosines >= torch.from_numpy(np.minimum(self.thresholds.yes, 2.0))  # no cosine is 2
        return probs, yes, cosines < torch.from_numpy(np.maximum(self.thresholds.no, -2.0))


class Nodes(nn.Module):
    """The answers of `Tree.descend` at a threshold, without loops over nodes."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        names = len(tree.names)
        self.members = nn.Buffer(torch.from_numpy(tree.members.T.astype(np.float64)))  # [C, nodes]
        siblings = {int(child): below for below in tree.children.values() for child in below}
        width = max(map(len, siblings.values()))
        table = [np.resize(siblings[node], width) for node in range(names)]  # repeats change no maximum
        self.siblings = nn.Buffer(torch.from_numpy(np.array(table)))  # [nodes, width]
        below = np.zeros((names, names))  # whether a node is on another one's path, the root's part left out
        skipped = 0 if tree.root < 0 else 1 + next(line.index(tree.root) for line in tree.lines)
        for line in tree.lines:
            for at, node in enumerate(line[skipped:], skipped):
                below[line[skipped : at + 1], node] = 1
        self.below = nn.Buffer(torch.from_numpy(below))

    def forward(self, probs: Tensor, threshold: float) -> Tensor:
        """Return the position of the deepest node [B] on the path of the most probable children, or -1."""
        values = (probs.double() @ self.members).clamp(max=1.0)  # [B, nodes]
        near = values[:, self.siblings]  # [B, nodes, width]
        first = self.siblings.gather(1, near.argmax(-1).T).T  # of ties, the first child
        best = first == torch.arange(len(self.siblings))
        depth = self.below.sum(0)
        path = (best.double() @ self.below == depth) & (values >= threshold) & (depth > 0)
        reached = torch.where(path, depth, 0.0)
        return torch.where(reached.amax(-1) > 0, reached.argmax(-1), -1)


def in_set(raw: Tensor, quantile: float) -> Tensor:
    """Return the members [B, C] of LAC prediction sets; the top label is a member of every set."""
    limit = lowest_probability(np.float64(quantile + SLACK))
    near = np.float32(limit)
    lowest = float(np.nextafter(near, np.float32(np.inf)) if near < limit else near)  # p >= limit, exactly
    return (raw >= lowest) | _top(raw)


def _top(probs: Tensor) -> Tensor:
    """Return True [B, C] for the first of the largest probabilities."""
    return torch.arange(probs.shape[1]) == probs.argmax(-1, keepdim=True)


def calibrated(calibrator: Calibrator, probs: Tensor) -> Tensor:
    """Return the calibrated probabilities [B, C], computed in float64: confidences near 1 need its digits."""
    classes, table = probs.shape[1], probs.double().clamp(min=TINY)
    if classes == 1:
        return torch.ones_like(probs)
    top, logs = _top(probs), (table / table.amax(-1, keepdim=True)).log()
    out, single, chance = (torch.zeros_like(table) for _ in range(3))  # the last two are the same in each row
    for temperature, curves in calibrator.groups():
        weight, a, b, m = (torch.from_numpy(column.copy()) for column in curves.T)  # [K] each
        powers = (logs / temperature).exp()
        ratios = torch.where(top, 0.0, powers.clamp(min=TINY))
        rest = ratios.sum(-1, keepdim=True)  # [B, 1]
        clipped = rest.clamp(CLIP / (1 - CLIP), (1 - CLIP) / CLIP)
        right = -torch.log1p(clipped)
        wrong = clipped.log() + right
        fitted = ((right * a - wrong * b + m).sigmoid() * weight).sum(-1, keepdim=True)
        out = out + ratios * ((weight.sum() - fitted) / rest)
        single = single + powers * (weight.sum() / (1 + rest))
        chance = chance + fitted
    even = 1 / classes
    above = (torch.where(top, single, 0.0).sum(-1, keepdim=True) - even).clamp(min=0)
    chance = torch.maximum(chance, even + LEAST * above)
    others = out * ((1 - chance) / out.sum(-1, keepdim=True).clamp(min=TINY))
    mixed = even + (chance - even) / above.clamp(min=TINY) * (single - even)
    found = torch.where(others.amax(-1, keepdim=True) >= chance, mixed, torch.where(top, chance, others))
    return found.to(probs.dtype)
