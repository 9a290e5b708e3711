"""What a post-hoc step is: a change of an answer's logits after any method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from poise.registry import Makers
from poise.types import Outputs


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
    def __call__(self, out: Outputs) -> Tensor:
        """Return the logits [B, C] of the answer.

        Args:
            out: the outputs after the method. View 0 of ``logits`` [B, V, C] is the answer; they are [B, 1, C] if the
                method gives no other views. ``reference_logits`` [B, V, C] are those under the initial prompt.
        """


posthoc = Makers[PostHoc]("post-hoc step", PostHoc)
