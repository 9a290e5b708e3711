"""The examples of the page: images of scikit-image with labels, and what they show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poise.images.samples import sample_images
from poise.results import Result


@dataclass(frozen=True)
class Example:
    """An image with labels.

    Attributes:
        file: name of one of the sample images.
        title: what the image shows, in one or two words.
        about: what happens with the model `pocket` (tests/demo/test_examples.py computes it).
        labels: what the model may answer.
        truth: what the image shows; maybe none of the labels.
        lesson: what the example teaches, whatever the answer.
    """

    file: str
    title: str
    about: str
    labels: tuple[str, ...]
    truth: str
    lesson: str = ""

    @property
    def path(self) -> Path:
        """The image."""
        return next(path for path in sample_images() if path.name == self.file)


EXAMPLES = (
    Example("chelsea.png", "Cat", "sure and right", ("cat", "dog", "fox", "rabbit"), "cat"),
    Example(
        "coffee.png",
        "Coffee",
        "less sure after tuning",
        ("coffee", "tea", "soup", "wine", "beer"),
        "coffee",
        "Compare the bars: tuning on views of the image changes how sure the model is, not only what it answers.",
    ),
    Example(
        "rocket.jpg",
        "Rocket",
        "in doubt",
        ("rocket", "airplane", "tower", "lighthouse"),
        "rocket",
        "A low confidence is useful: it says that a person should look.",
    ),
    Example(
        "astronaut.png",
        "Astronaut",
        "wrong",
        ("astronaut", "pilot", "diver", "firefighter", "doctor"),
        "astronaut",
        "Calibration does not make a model right; it says how often it is right when it claims this much.",
    ),
    Example(
        "chelsea.png",
        "Cat, not offered",
        "sure, and no label is right",
        ("dog", "rabbit", "horse", "bear"),
        "cat",
        "One of the labels has to win all the same, so the confidence is no warning. Compare the match with that of "
        "the example “Cat”: it is a hint, and the only one.",
    ),
)


def find_example(image: bytes, labels: tuple[str, ...]) -> Example | None:
    """Return the example with this image and these labels, if there is one."""
    return next((row for row in EXAMPLES if row.labels == labels and row.path.read_bytes() == image), None)


def remark(example: Example, result: Result) -> str:
    """Return whether the answer is right, and what the example teaches."""
    best = result.top(1)[0][0]
    if example.truth not in example.labels:
        verdict = f"The image shows a {example.truth}, and no label says so."
    elif best == example.truth:
        verdict = "This answer is right."
    else:
        verdict = f"This answer is wrong: the correct label is {example.truth}."
    return f"{verdict} {example.lesson}".strip()
