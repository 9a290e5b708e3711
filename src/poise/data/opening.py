"""Opens datasets by name, with the readers of the catalogue's rows and the schemes of all other images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from poise.data.catalog import DatasetRow, Protocol, datasets
from poise.data.folder import open_folder
from poise.data.hub_datasets import open_hub
from poise.data.items import ImageSet, Item, draw_shots
from poise.data.locations import check_root
from poise.data.shards import open_shards
from poise.data.splits import SPLITS, open_split, open_variants
from poise.data.wnids import open_wnids
from poise.errors import InvalidDatasetError, InvalidOptionError, UnknownNameError, reason_of
from poise.files import hash_names
from poise.registry import Registry
from poise.text import as_utf8, counted

# A reader returns the class names in label order, the items of a split, and the layout and folder where they are.
Reader = Callable[[DatasetRow, Path, str], tuple[tuple[str, ...], list[Item], str, Path]]


@dataclass(frozen=True)
class Scheme:
    """A kind of images that need no row: ``SCHEME:PATH``."""

    form: str  # an example of a name
    about: str
    open: Callable[[str], ImageSet]  # called with what follows the colon


readers: Registry[Reader] = Registry("reader of datasets")
readers.add("split")(open_split)  # CoOp's JSON file
readers.add("variants")(open_variants)  # Aircraft's text files
readers.add("wnids")(open_wnids)  # a folder per ImageNet class
schemes: Registry[Scheme] = Registry("scheme of datasets")
schemes.add("folder")(Scheme("folder:/path", "one folder per class", open_folder))
schemes.add("wds")(Scheme("wds:/path/{000..012}.tar", "a webdataset", open_shards))
schemes.add("hf")(Scheme("hf:org/name:split", "a Hugging Face dataset", open_hub))


def has_scheme(name: str) -> bool:
    """Return whether ``name`` is a scheme and what it opens, rather than a name of the catalogue."""
    scheme, _, path = name.partition(":")
    return bool(path) and scheme in schemes


def open_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str = "test",
    shots: int | None = None,
    seed: int = 1,
    protocol: Protocol = "tpt",
    strict: bool = True,
) -> ImageSet:
    """Open a dataset of the catalogue, or ``folder:PATH``, ``wds:SHARDS`` or ``hf:ID[:SPLIT]``.

    Args:
        name: Name in the catalogue, or a scheme and its path or id.
        root: Data folder, in the layout of CoOp or TPT; not needed with a scheme.
        split: "test", "train" or "val". ImageNet's validation images are its "test" split.
        shots: Number of images per class, drawn from the split as in CoOp's code; None for all images.
        seed: Seed of the few-shot draw.
        protocol: "tpt" uses AugMix for the fine-grained datasets, "c-tpt" also for ImageNet's shifts.
        strict: Whether to raise an error if the class names or their order differ from the published ones.
    """
    if split not in SPLITS:
        raise InvalidOptionError(f"The split '{split}' is unknown.", hint=f"Known: {', '.join(SPLITS)}.")
    if protocol not in ("tpt", "c-tpt"):
        raise InvalidOptionError(f"The protocol '{protocol}' is unknown.", hint="Known: tpt, c-tpt.")
    try:
        return _as_utf8(_open(name, root, split, shots, seed, protocol, strict))
    except OSError as error:  # such as a folder that may not be listed
        raise InvalidDatasetError(
            f"The dataset '{name}' can't be read: {reason_of(error)}.", hint="Check its files."
        ) from error


def _open(
    name: str, root: str | Path | None, split: str, shots: int | None, seed: int, protocol: Protocol, strict: bool
) -> ImageSet:
    if has_scheme(name):
        if split != "test":
            raise InvalidOptionError(f"'{name}' has no split '{split}'.", hint="Name the other folder.")
        scheme, _, path = name.partition(":")
        images = schemes.get(scheme).open(path)
        return images if shots is None else replace(images, items=tuple(draw_shots(images.items, shots, seed)))
    if name not in datasets:
        raise UnknownNameError.of("dataset", name, [*datasets, *(f"{known}:..." for known in schemes)])
    row = datasets.get(name)
    classes, items, layout, folder = readers.get(row.reader)(row, check_root(root), split)
    if strict:
        check_classes(row, classes, folder)
    return ImageSet(
        name=name,
        classes=classes,
        items=tuple(items if shots is None else draw_shots(items, shots, seed)),
        template=row.template,
        augmix=row.augmix_under(protocol),
        shift=row.shift,
        reference_accuracy=row.accuracy,
        split=split,
        folder=str(folder),
        layout=layout,
    )


def _as_utf8(images: ImageSet) -> ImageSet:
    """Escape what records can't contain in names and ids; the paths that are read remain as they are."""
    items = tuple(item if item.id.isascii() else replace(item, id=as_utf8(item.id)) for item in images.items)
    classes = tuple(map(as_utf8, images.classes))
    return replace(images, name=as_utf8(images.name), classes=classes, items=items, folder=as_utf8(images.folder))


def check_classes(row: DatasetRow, classes: tuple[str, ...], folder: Path) -> None:
    """Raise an error if the names, number or order of the classes differ from the published ones."""
    if len(classes) != row.classes:
        raise InvalidDatasetError(
            f"{row.title} in '{folder}' has {counted(len(classes), 'class')}; published results have {row.classes}.",
            hint="Use the published split file, or open it with strict=False.",
        )
    if row.class_hash and hash_names(classes) != row.class_hash:
        raise InvalidDatasetError(
            f"The class names of {row.title} in '{folder}', or their order, are not the published ones "
            f"(hash {hash_names(classes)}, published {row.class_hash}).",
            hint="A wrong order gives every image a wrong label. Use the published split file, or strict=False.",
        )
