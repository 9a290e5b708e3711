"""The 15 benchmarks, and any class-per-folder tree, webdataset or Hugging Face dataset, as labelled images."""

from poise.data.catalog import DatasetRow, names, row
from poise.data.items import ImageSet, Item
from poise.data.opening import open_dataset
from poise.data.verify import CheckResult, check, check_all

__all__ = ["CheckResult", "DatasetRow", "ImageSet", "Item", "check", "check_all", "names", "open_dataset", "row"]
