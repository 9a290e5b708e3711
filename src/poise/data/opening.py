"""Opens datasets by name, with the readers of the catalogue's rows and the schemes of all other images."""

from __future__ import annotations

import difflib
import glob
import os
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poise.data.catalog import DatasetRow, Protocol, datasets
from poise.data.class_trees import class_paths, find_tree
from poise.data.file_patterns import find_files, find_remote
from poise.data.folder import open_folder
from poise.data.hub_datasets import hub_shards, open_hub
from poise.data.items import NO_LABEL, ImageSet, Item, draw_shots
from poise.data.locations import check_root
from poise.data.shards import find_shards, open_shards
from poise.data.sources import PER_SHARD, Shard, TarShard, file_shards, item_shards, list_shards
from poise.data.splits import SPLITS, open_split, open_variants
from poise.data.stored_features import feature_shards, has_features, open_features
from poise.data.tables import ParquetShard
from poise.data.wnids import open_wnids
from poise.errors import InvalidDatasetError, InvalidOptionError, UnknownNameError, reason_of
from poise.files import hash_names
from poise.filesystems import is_remote
from poise.images.find import SUFFIXES, find_images, no_images
from poise.images.samples import sample_images
from poise.registry import Registry
from poise.text import as_utf8, counted

# A reader returns the class names in label order, the items of a split, and the layout and folder where they are.
Reader = Callable[[DatasetRow, Path, str], tuple[tuple[str, ...], list[Item], str, Path]]


@dataclass(frozen=True)
class Scheme:
    """A kind of images that need no row: ``SCHEME:PATH``.

    Attributes:
        form: an example of a name.
        about: what it is.
        open: returns the labelled images; called with what follows the colon. None if they have no labels.
        shards: returns the images without their labels, to be read in parts; None for the items of ``open``.
    """

    form: str
    about: str
    open: Callable[[str], ImageSet] | None
    shards: Callable[[str], Sequence[Shard]] | None = None


readers: Registry[Reader] = Registry("reader of datasets", of=Callable)  # type: ignore[arg-type]
readers.add("split")(open_split)  # CoOp's JSON file
readers.add("variants")(open_variants)  # Aircraft's text files
readers.add("wnids")(open_wnids)  # a folder per ImageNet class
schemes: Registry[Scheme] = Registry("scheme of datasets", of=Scheme)
schemes.add("folder")(Scheme("folder:/path", "one folder per class", open_folder))
schemes.add("wds")(
    Scheme(
        "wds:/path/{000..012}.tar",
        "a webdataset",
        open_shards,
        lambda pattern: [TarShard(path) for path in find_shards(pattern)],
    )
)
schemes.add("hf")(
    Scheme("hf:org/name:split", "a Hugging Face dataset", open_hub, lambda spec: hub_shards(spec, PER_SHARD))
)
schemes.add("parquet")(
    Scheme(
        "parquet:/path/{000..012}.parquet",
        "tables with a column of encoded images, or of paths",
        None,
        lambda pattern: [ParquetShard(path) for path in find_files(pattern, ".parquet", "parquet")],
    )
)
schemes.add("features")(Scheme("features:/path", "features that `poise embed` stored", open_features, feature_shards))
schemes.add("list")(Scheme("list:/path/images.txt", "a text file with one path per line", None, list_shards))


_CONTAINERS = {".tar": "wds", ".parquet": "parquet", ".txt": "list"}  # files that people give without their scheme


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
        opened = schemes.get(scheme).open
        if opened is None:
            hint = f"Known with labels: {', '.join(known for known in schemes if schemes.get(known).open)}."
            raise InvalidDatasetError(f"'{name}' has no labels.", hint=hint)
        images = opened(path)
        return images if shots is None else replace(images, items=tuple(draw_shots(images.items, shots, seed)))
    if name not in datasets:
        raise UnknownNameError.of("dataset", name, [*datasets, *(f"{known}:..." for known in schemes)])
    row = datasets.get(name)
    classes, items, layout, folder = _read(row, check_root(root), split)
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
        parents=find_tree(folder, check_root(root)) or (class_paths(row.tree, classes) if row.tree else ()),
    )


def _read(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], Sequence[Item], str, Path]:
    """Return what the row's reader, which may be of a plug-in, reads."""
    read = readers.get(row.reader)(row, root, split)
    if not isinstance(read, tuple) or len(read) != 4 or not all(isinstance(item, Item) for item in read[1]):
        raise InvalidDatasetError(
            f"The reader '{row.reader}' of the dataset '{row.name}' returned {reprlib.repr(read)}.",
            hint="It must return the class names, a list of poise.data.Item, the layout and the folder.",
        )
    classes, items, layout, folder = read
    wrong = [item for item in items if not NO_LABEL <= item.label < len(classes)]
    if wrong:
        raise InvalidDatasetError(
            f"The image '{wrong[0].id}' of the dataset '{row.name}' has the label {wrong[0].label}.",
            hint=f"The reader '{row.reader}' gives {counted(len(classes), 'class name')}, counted from 0.",
        )
    return classes, items, layout, folder


def open_images(sources: Sequence[str]) -> list[Shard]:
    """Return the shards of images whose labels nobody asks for.

    Args:
        sources: each a scheme and what it opens (`schemes`), or files, a folder or a glob pattern, here or on a remote
            filesystem; "samples" for the example images.
    """
    found: list[Shard] = []
    files: list[Path | str] = []
    for source in sources:
        if (os.path.isdir(source) or is_remote(source)) and has_features(source):
            source = f"features:{source}"
        scheme, _, path = source.partition(":")
        if not has_scheme(source) or os.path.exists(source):
            files += _find(source)
            continue
        row = schemes.get(scheme)
        try:
            found += row.shards(path) if row.shards else item_shards(source, open_dataset(source).items)
        except OSError as error:
            raise InvalidDatasetError(f"'{source}' can't be read: {reason_of(error)}.", hint="Check it.") from error
    return [*file_shards(files), *found]


def _find(source: str) -> Sequence[Path | str]:
    """Return the image files that a source without a scheme means."""
    if source == "samples":
        return sample_images()
    scheme = _CONTAINERS.get(os.path.splitext(source)[1].lower())
    if scheme and not os.path.isdir(source):
        raise InvalidOptionError(f"'{source}' is no image.", hint=f"For the images in it, write {scheme}:{source}")
    if not is_remote(source):
        _check_there(source)
        return find_images([source])
    found = find_remote(source, SUFFIXES, below=True)
    if not found:
        raise no_images(source)
    return found


def _check_there(source: str) -> None:
    """Refuse a folder that does not exist, such as a misspelled one; a missing image file has a row that says so."""
    path = Path(os.path.expanduser(source))
    if os.path.lexists(path) or glob.has_magic(source) or path.suffix:
        return
    beside = os.listdir(path.parent) if os.path.isdir(path.parent) else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    guess = f" Did you mean '{path.parent / near[0]}'?" if near else ""
    raise InvalidOptionError(f"'{source}' does not exist.{guess}", hint="Give image files, a folder or a glob pattern.")


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
