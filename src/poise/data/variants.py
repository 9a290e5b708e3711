"""FGVC Aircraft: ``variants.txt`` names the classes in order, ``images_variant_*.txt`` lists ``image variant``."""

from __future__ import annotations

from pathlib import Path

from poise.data.catalog import DatasetRow
from poise.data.edits import tidy
from poise.data.items import Item
from poise.data.locations import absent, found_places, how_to_get
from poise.errors import InvalidDatasetError


def open_variants(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Class names, items, layout and folder of the Aircraft set."""
    listing = f"images_variant_{split}.txt"
    folders = list(found_places(row, root))
    if not folders:
        raise absent(row, root, [f"'{place.folder}/variants.txt'" for place in row.places])
    for place, folder in folders:
        if (folder / "variants.txt").is_file() and (folder / listing).is_file():
            variants = [line.strip() for line in _lines(folder / "variants.txt")]
            items = _items(folder, listing, variants)
            return tuple(map(tidy, variants)), items, place.layout, folder
    raise InvalidDatasetError(
        f"{row.title}: '{folders[0][1]}' has no variants.txt or no {listing}.", hint=how_to_get(row)
    )


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _items(folder: Path, listing: str, variants: list[str]) -> list[Item]:
    labels = {variant: label for label, variant in enumerate(variants)}
    items = []
    for line in _lines(folder / listing):
        image, _, variant = line.strip().partition(" ")
        if variant not in labels or not image.isalnum():
            raise InvalidDatasetError(
                f"'{folder / listing}' holds '{line}', which is not 'image variant'.", hint="Fetch it again."
            )
        items.append(Item(id=f"images/{image}.jpg", label=labels[variant], read=f"{folder}/images/{image}.jpg"))
    return items
