"""The 15 benchmarks, and any class-per-folder tree, webdataset or Hugging Face dataset, as labelled pictures."""

from poise.data.catalog import Row, names, row
from poise.data.items import ImageSet, Item, hash_classes
from poise.data.loading import open_dataset as open
from poise.data.plausible import plausibility
from poise.data.verify import Finding, check, check_all

__all__ = [
    "Finding",
    "ImageSet",
    "Item",
    "Row",
    "check",
    "check_all",
    "hash_classes",
    "names",
    "open",
    "plausibility",
    "row",
]
