"""Features of earlier images, grouped by the class that they were predicted as: the state of TDA, BoostAdapter and DMN.

Rows of a class are consecutive and in the order of arrival, so that sums over a class have one order on every device,
and a restored state continues with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureCache:
    """At most some rows per class; `put` returns another cache and leaves this one as it is."""

    features: Tensor  # [n, D]
    entropy: Tensor  # [n]: how unsure the prediction was
    counts: Tensor  # [C]: rows of each class
    marks: Tensor  # [n, K]: what else is stored with a row; K may be 0

    @classmethod
    def empty(cls, text_features: Tensor, marks: int = 0) -> FeatureCache:
        """Make a cache for texts [C, D], on their device."""
        classes, width = text_features.shape
        new = text_features.new_empty
        counts = torch.zeros(classes, dtype=torch.long, device=text_features.device)
        return cls(new(0, width), new(0), counts, new(0, marks, dtype=torch.bool))

    @classmethod
    def of(cls, state: Mapping[str, Tensor], prefix: str) -> FeatureCache:
        """Read what `named` returned."""
        return cls(**{name: state[f"{prefix}.{name}"] for name in ("features", "entropy", "counts", "marks")})

    def named(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors by name, for a state."""
        return {f"{prefix}.{name}": tensor for name, tensor in vars(self).items()}

    def put(
        self,
        label: int,
        feature: Tensor,
        entropy: Tensor,
        *,
        capacity: int,
        marks: Tensor | None = None,
        drop_oldest: bool = False,
    ) -> FeatureCache:
        """Add a row to a class; beyond the capacity, a row of the class leaves.

        Args:
            label: the class.
            feature: [D].
            entropy: a number; the row of the largest leaves, and of equal ones the latest.
            capacity: rows of the class.
            marks: [K].
            drop_oldest: the row that came first leaves instead.
        """
        start = int(self.counts[:label].sum())
        count = int(self.counts[label])
        stop = start + count
        entropies = torch.cat([self.entropy[start:stop], entropy.reshape(1).to(self.entropy)])
        keep = list(range(count + 1))
        while len(keep) > capacity:
            left = entropies[keep]
            keep.pop(0 if drop_oldest else int((left == left.max()).nonzero()[-1]))
        new = self.marks.new_zeros(self.marks.shape[1]) if marks is None else marks
        counts = self.counts.clone()
        counts[label] = len(keep)

        def joined(rows: Tensor, row: Tensor) -> Tensor:
            group = torch.cat([rows[start:stop], row[None].to(rows)])
            return torch.cat([rows[:start], group[keep], rows[stop:]])

        return FeatureCache(
            joined(self.features, feature), joined(self.entropy, entropy.reshape(())), counts, joined(self.marks, new)
        )

    def affinity(self, feature: Tensor, sharpness: float) -> Tensor:
        """Return exp(-sharpness (1 - cosine)) [n] of each row and a feature [D]."""
        return (-sharpness * (1 - self.features @ feature.to(self.features))).exp()

    def per_class(self, rows: Tensor) -> Tensor:
        """Return the sums [C, ...] over the rows [n, ...] of each class; zeros for a class without rows."""
        return torch.segment_reduce(rows, "sum", lengths=self.counts, axis=0, initial=0.0)
