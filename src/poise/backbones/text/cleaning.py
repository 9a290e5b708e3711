"""What is done to texts before they are tokenised."""

from __future__ import annotations

import string

CANONICAL = "canonicalize"  # open_clip's name for it
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def canonical(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and repeated spaces, as SigLIP was trained.

    Example:
        >>> canonical("A Photo of a  Cat_fish.")
        'a photo of a cat fish'
    """
    return " ".join(text.replace("_", " ").translate(_PUNCTUATION).lower().split())
