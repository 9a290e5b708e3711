"""The 15 benchmarks, and any class-per-folder tree, webdataset or Hugging Face dataset, as labelled images."""

from poise.data.catalog import DatasetRow, Location, datasets, names, register, row
from poise.data.items import ImageSet, Item
from poise.data.opening import Scheme, open_dataset, readers, schemes
from poise.data.verify import CheckResult, check, check_all

__all__ = [
    "CheckResult",
    "DatasetRow",
    "ImageSet",
    "Item",
    "Location",
    "Scheme",
    "check",
    "check_all",
    "datasets",
    "names",
    "open_dataset",
    "readers",
    "register",
    "row",
    "schemes",
]
