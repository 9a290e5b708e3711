"""The sentences around a name, and which look of an image each of them claims."""

from __future__ import annotations

STANDARD = "a photo of a {}."

# How often each of these is drawn against the others; no claim about the look of the image.
PLAIN = (
    "{}", "{}.", "a {}", "the {}", "a {}.", "an image of a {}.", "a picture of a {}.", "a photo of {}.",
    "a photo of the {}.", "a photo of one {}.", "a photo of my {}.", "a photo of an {}.", "a good photo of a {}.",
    "a good photo of the {}.", "itap of a {}.", "itap of my {}.", "itap of the {}.", "this is a photo of a {}.",
    "this is a {}.", "there is a {} in the photo.", "a photo of a {}, a type of animal.",
    "a photo of a {}, a type of pet.", "a photo of a {}, a type of food.", "a photo of {}, a type of food.",
    "a photo of a {}, a type of flower.", "a photo of a {}, a type of bird.", "a photo of a {}, a type of vehicle.",
    "a photo of a {}, a type of aircraft.", "a photo of a {}, a type of car.", "a photo of a {}, a type of object.",
    "a photo of a person doing {}.", "a photo of many {}.", "a photo of a small {}.", "a photo of a large {}.",
    "a photo of a big {}.", "a photo of a nice {}.", "a photo of a cool {}.", "a photo of a weird {}.",
    "a photo of a clean {}.", "a photo of a dirty {}.", "a photo of a hard to see {}.", "a photo of a scene of {}.",
    "a centered photo of a {}.", "a centered satellite photo of {}.", "a satellite photo of {}.", "{} texture.",
    "a photo of a {} texture.", "a photo of a {} pattern.", "one {}", "my {}", "some {}", "many {}",
    "a photograph of a {}.", "an example of a {}.", "a snapshot of a {}.", "photo of {}", "image of {}", "X {}",
    "X X X X {}.", "class: {}", "a {} in the scene.",
)  # fmt: skip

# look -> the words that name it; the looks themselves are made in looks.py
LOOKS = {
    "cropped": ("a cropped photo of a {}.", "a cropped photo of the {}.", "a partial view of a {}."),
    "close": ("a close-up photo of a {}.", "a close-up photo of the {}.", "a zoomed photo of a {}."),
    "blurry": ("a blurry photo of a {}.", "a blurry photo of the {}.", "an out of focus photo of a {}."),
    "dark": ("a dark photo of a {}.", "a dark photo of the {}.", "a photo of a {} at night."),
    "bright": ("a bright photo of a {}.", "a bright photo of the {}.", "an overexposed photo of a {}."),
    "grey": ("a black and white photo of a {}.", "a black and white photo of the {}.", "a grey photo of a {}."),
    "small": ("a low resolution photo of a {}.", "a pixelated photo of a {}.", "a low resolution photo of the {}."),
    "noisy": ("a bad photo of a {}.", "a bad photo of the {}.", "a noisy photo of a {}.", "a grainy photo of a {}."),
    "jpeg": ("a jpeg corrupted photo of a {}.", "a jpeg corrupted photo of the {}."),
    "turned": ("a rotated photo of a {}.", "a sideways photo of a {}.", "an upside down photo of a {}."),
    "far": ("a photo of a {} from far away.", "a distant photo of a {}.", "a photo of a tiny {}."),
}

ADJECTIVES = (
    "red", "green", "blue", "yellow", "black", "white", "brown", "orange", "pink", "purple", "grey", "golden",
    "silver", "old", "new", "young", "big", "small", "large", "tiny", "tall", "short", "long", "round", "wooden",
    "metal", "plastic", "glass", "stone", "broken", "clean", "dirty", "wet", "dry", "wild", "domestic", "adult",
    "baby", "cute", "beautiful", "ugly", "empty", "full", "open", "closed", "striped", "spotted", "shiny", "rusty",
    "modern", "vintage", "antique", "electric", "toy", "fresh", "cooked", "sliced", "sleeping", "running", "flying",
    "standing", "sitting", "swimming", "parked", "hanging", "male", "female",
)  # fmt: skip

SECOND = ("and a", "with a", "on a", "in a", "next to a", "near a", "in front of a")
