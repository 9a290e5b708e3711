"""Conversions of a dataset's original class names to the names that published results were obtained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from poise.text import as_words

Edit = Callable[[str], str]


def tidy(name: str) -> str:
    """Replace underscores by spaces.

    >>> tidy("car_side")
    'car side'
    """
    return " ".join(as_words(name).split())


def lower_case(name: str) -> str:
    """Convert to lower case (Pets).

    >>> lower_case("Egyptian_Mau")
    'egyptian mau'
    """
    return tidy(name).lower()


def split_camel_case(name: str) -> str:
    """Separate words at capital letters (UCF101).

    >>> split_camel_case("ApplyEyeMakeup")
    'Apply Eye Makeup'
    """
    return tidy(re.sub(r"(?<!^)(?=[A-Z])", " ", name.replace("_", "")))


def reverse_parts(name: str) -> str:
    """Remove the leading letter and put the qualifier before the scene (SUN397).

    >>> reverse_parts("w/wrestling_ring/indoor")
    'indoor wrestling ring'
    """
    return tidy(" ".join(reversed(name.split("/")[1:])))


def _rename(names: Mapping[str, str], name: str) -> str:
    return names.get(name, tidy(name))


caltech_names = partial(
    _rename, {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}
)
eurosat_names = partial(
    _rename,
    {
        "AnnualCrop": "Annual Crop Land",
        "HerbaceousVegetation": "Herbaceous Vegetation Land",
        "Highway": "Highway or Road",
        "Industrial": "Industrial Buildings",
        "Pasture": "Pasture Land",
        "PermanentCrop": "Permanent Crop Land",
        "Residential": "Residential Buildings",
        "SeaLake": "Sea or Lake",
    },
)
