"""From a dataset's own class names to the names that published results were obtained with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Edit = Callable[[str], str]


def tidy(name: str) -> str:
    """Underscores are spaces in a prompt.

    >>> tidy("car_side")
    'car side'
    """
    return " ".join(name.replace("_", " ").split())


def lower_case(name: str) -> str:
    """Pets: breeds in lower case.

    >>> lower_case("Egyptian_Mau")
    'egyptian mau'
    """
    return tidy(name).lower()


def split_camel_case(name: str) -> str:
    """UCF101: one word per capital letter.

    >>> split_camel_case("ApplyEyeMakeup")
    'Apply Eye Makeup'
    """
    return tidy(re.sub(r"(?<!^)(?=[A-Z])", " ", name.replace("_", "")))


def reverse_parts(name: str) -> str:
    """SUN397: the leading letter dropped, the qualifier before the scene.

    >>> reverse_parts("w/wrestling_ring/indoor")
    'indoor wrestling ring'
    """
    return tidy(" ".join(reversed(name.split("/")[1:])))


@dataclass(frozen=True)
class Renamed:
    """Some classes have a new name, the others are only tidied."""

    names: Mapping[str, str]

    def __call__(self, name: str) -> str:
        """The published name of the folder ``name``."""
        return self.names.get(name, tidy(name))


caltech_names = Renamed({"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"})
eurosat_names = Renamed(
    {
        "AnnualCrop": "Annual Crop Land",
        "HerbaceousVegetation": "Herbaceous Vegetation Land",
        "Highway": "Highway or Road",
        "Industrial": "Industrial Buildings",
        "Pasture": "Pasture Land",
        "PermanentCrop": "Permanent Crop Land",
        "Residential": "Residential Buildings",
        "SeaLake": "Sea or Lake",
    }
)
