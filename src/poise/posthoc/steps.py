"""What a post-hoc step is: a change of an answer's logits after any method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from poise.registry import Registry


@dataclass(frozen=True)
class Answered:
    """What a post-hoc step reads about B images."""

    logits: Tensor  # [B, V, C] after the method, of which view 0 is the answer; [B, 1, C] if it gives no other views
    init_logits: Tensor  # [B, V, C] under the initial prompt
    text_features: Tensor  # [B, C, D] after the method


class PostHoc(ABC):
    """Returns other logits for an answer. Row b depends on image b alone."""

    reads_views: ClassVar[bool] = False
    """Whether it needs the logits of all views after the method."""

    least_views: ClassVar[int] = 1
    """How many views per image it needs, the plain one included."""

    keeps_label: ClassVar[bool] = True
    """Whether the predicted label stays the same."""

    citation: ClassVar[str] = ""
    dash: ClassVar[str] = ":"
    """The line style of methods with this step, in the colour of the method before it."""

    @abstractmethod
    def __call__(self, answered: Answered) -> Tensor:
        """Return the logits [B, C] of the answer."""


posthoc: Registry[Callable[..., PostHoc]] = Registry("post-hoc step")
