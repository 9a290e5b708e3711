"""The registry of datasets, and the rows of the 15 benchmarks: counts, folders, settings of the published protocols.

Folders, counts and class names follow the layouts of CoOp (``$DATA``) and TPT, and torchvision's downloads. To add a
benchmark, add one row here and one line to ``tests/data/trees.py``; your own package calls `register`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from poise.data.class_trees import CALTECH101, PETS, Branches
from poise.data.edits import Edit, caltech_names, eurosat_names, lower_case, reverse_parts, split_camel_case, tidy
from poise.registry import Registry

Protocol = Literal["tpt", "c-tpt"]


@dataclass(frozen=True)
class Location:
    """A possible folder of a dataset's images, relative to the data folder; case, '-' and '_' are ignored."""

    layout: str  #: "coop", "tpt" or "torchvision"
    folder: str  #: "{split}" stands for "val" or "train"


@dataclass(frozen=True, kw_only=True)
class DatasetRow:
    """The properties of one dataset."""

    name: str
    title: str
    heading: str  #: column heading in tables
    classes: int
    images: int  #: number of images in the test split
    places: tuple[Location, ...]
    licence: str
    get: str  #: where to download it
    class_hash: str = ""  #: `hash_names` of the published class names in label order; "" if there are none
    accuracy: float | None = None  #: published zero-shot accuracy of CLIP ViT-B/16, to warn if labels look permuted
    reader: str = "split"  #: a row of `poise.data.opening.readers`
    split_file: str = ""
    split_drive: str = ""  #: id of the split file on CoOp's Google Drive
    wnids: str = "imagenet"  #: timm's list of the dataset's classes
    edit: Edit = tidy  #: maps an original class name to the published one
    class_encoded_in: Literal["folder", "file", ""] = ""  #: the part of an image's path that contains its class
    torchvision: str = ""  #: name of torchvision's dataset class
    template: str = "a photo of a {}."
    augmix: bool = True  #: under TPT's protocol: on for fine-grained datasets, off for ImageNet and its shifts
    augmix_c_tpt: bool = True  #: in the scripts of C-TPT and O-TPT, which also use it for the shifts
    shift: bool = False  #: whether it is a distribution shift of ImageNet
    tree: Branches = field(default_factory=dict)  #: the classes below each node; a file tree.csv replaces it

    def augmix_under(self, protocol: Protocol) -> bool:
        """Return whether views are mixed with AugMix; the published protocols differ on ImageNet's shifts."""
        return self.augmix_c_tpt if protocol == "c-tpt" else self.augmix

    @property
    def split_url(self) -> str:
        """URL of the published split file, or "" if the dataset has none."""
        return f"https://drive.google.com/file/d/{self.split_drive}" if self.split_drive else ""


def _places(coop: str, *tpt: str, torchvision: str = "") -> tuple[Location, ...]:
    more = (Location("torchvision", torchvision),) if torchvision else ()
    return (Location("coop", coop), *(Location("tpt", folder) for folder in tpt), *more)


# fmt: off
FINE_GRAINED = (  # in the order of the paper's tables
    DatasetRow(
        name="aircraft", title="FGVC Aircraft", heading="Air", classes=100, images=3333, class_hash="db2b24f058c53b87",
        reader="variants", accuracy=0.239, torchvision="FGVCAircraft",
        places=_places("fgvc_aircraft", "fgvc_aircraft/data", torchvision="fgvc-aircraft-2013b/data"),
        licence="non-commercial research", get="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    ),
    DatasetRow(
        name="caltech101", title="Caltech101", heading="Calt", classes=100, images=2465, class_hash="81bf324ca66c01e6",
        accuracy=0.929, edit=caltech_names, tree=CALTECH101, class_encoded_in="folder", torchvision="Caltech101",
        places=_places("caltech-101/101_ObjectCategories", "Caltech101", "Caltech101/101_ObjectCategories"),
        split_file="split_zhou_Caltech101.json", split_drive="1hyarUivQE36mY6jSomru6Fjd-JzwcCzN", licence="CC BY 4.0",
        get="https://data.caltech.edu/records/mzrjq-6wc02",
    ),
    DatasetRow(
        name="cars", title="Stanford Cars", heading="Car", classes=196, images=8041, class_hash="29c6e252424d66b5",
        accuracy=0.653, places=_places("stanford_cars", "StanfordCars", "StanfordCar"),
        split_file="split_zhou_StanfordCars.json", split_drive="1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT",
        licence="non-commercial research",
        get="the original site is gone; a copy with cars_train/ and cars_test/ (e.g. on Kaggle) is needed",
    ),
    DatasetRow(
        name="dtd", title="Describable Textures", heading="DTD", classes=47, images=1692, class_hash="e30977c69b3a2412",
        accuracy=0.443, class_encoded_in="folder", torchvision="DTD",
        places=_places("dtd/images", "DTD/images", torchvision="dtd/dtd/images"),
        split_file="split_zhou_DescribableTextures.json", split_drive="1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x",
        licence="research", get="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    ),
    DatasetRow(
        name="eurosat", title="EuroSAT", heading="SAT", classes=10, images=8100, class_hash="7614d0bbeca9328d",
        accuracy=0.413, edit=eurosat_names, class_encoded_in="folder", torchvision="EuroSAT",
        places=_places("eurosat/2750", "eurosat"), split_file="split_zhou_EuroSAT.json",
        split_drive="1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o", licence="MIT",
        get="https://github.com/phelber/EuroSAT (the RGB images)",
    ),
    DatasetRow(
        name="flowers102", title="Oxford Flowers", heading="FLW", classes=102, images=2463,
        class_hash="fc2e7c23568d3144", accuracy=0.673, torchvision="Flowers102",
        places=_places("oxford_flowers/jpg", "Flower102/jpg", torchvision="flowers-102/jpg"),
        split_file="split_zhou_OxfordFlowers.json", split_drive="1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT", licence="research",
        get="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    ),
    DatasetRow(
        name="food101", title="Food101", heading="Food", classes=101, images=30300, class_hash="a169ebd72f0c51f5",
        accuracy=0.836, class_encoded_in="folder", torchvision="Food101",
        places=_places("food-101/images", "Food101/images"), split_file="split_zhou_Food101.json",
        split_drive="1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl", licence="research (Foodspotting images)",
        get="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    ),
    DatasetRow(
        name="pets", title="Oxford Pets", heading="Pets", classes=37, images=3669, class_hash="2f0255738e3e7a69",
        accuracy=0.880, edit=lower_case, tree=PETS, class_encoded_in="file", torchvision="OxfordIIITPet",
        places=_places("oxford_pets/images", "OxfordPets", "OxfordPets/images", torchvision="oxford-iiit-pet/images"),
        split_file="split_zhou_OxfordPets.json", split_drive="1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs",
        licence="CC BY-SA 4.0", get="https://www.robots.ox.ac.uk/~vgg/data/pets/",
    ),
    DatasetRow(
        name="sun397", title="SUN397", heading="SUN", classes=397, images=19850, class_hash="1bd72b04a56a74f9",
        accuracy=0.625, edit=reverse_parts, class_encoded_in="folder", torchvision="SUN397",
        places=_places("sun397/SUN397", "SUN397"), split_file="split_zhou_SUN397.json",
        split_drive="1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq", licence="research",
        get="https://vision.princeton.edu/projects/2010/SUN/",
    ),
    DatasetRow(
        name="ucf101", title="UCF101", heading="UCF", classes=101, images=3783, class_hash="ba260a992fa7359c",
        accuracy=0.650, edit=split_camel_case, class_encoded_in="folder",
        places=_places("ucf101/UCF-101-midframes", "UCF101", "UCF101/UCF-101-midframes"),
        split_file="split_zhou_UCF101.json", split_drive="1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y", licence="research",
        get="https://drive.google.com/file/d/10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O (middle frames)",
    ),
)
IMAGENET = (  # and its shifts
    DatasetRow(
        name="imagenet", title="ImageNet", heading="I", classes=1000, images=50000, class_hash="bbb03b5ee8f22041",
        reader="wnids", accuracy=0.667, augmix=False, augmix_c_tpt=False,
        places=_places("imagenet/images/{split}", "ImageNet/{split}"),
        licence="ImageNet terms: non-commercial research",
        get="https://image-net.org (ILSVRC 2012 validation images, in a folder per class)",
    ),
    DatasetRow(
        name="imagenet-a", title="ImageNet-A", heading="I-A", classes=200, images=7500, class_hash="526dc1fd035e7519",
        reader="wnids", wnids="imagenet_a", accuracy=0.478, augmix=False, shift=True,
        places=_places("imagenet-adversarial/imagenet-a", "imagenet-a"), licence="MIT (code); images as published",
        get="https://github.com/hendrycks/natural-adv-examples",
    ),
    DatasetRow(
        name="imagenet-v2", title="ImageNet-V2", heading="I-V2", classes=1000, images=10000,
        class_hash="bbb03b5ee8f22041", reader="wnids", accuracy=0.608, augmix=False, shift=True,
        places=_places("imagenetv2/imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency-format-val"),
        licence="MIT", get="https://github.com/modestyachts/ImageNetV2 (matched frequency)",
    ),
    DatasetRow(
        name="imagenet-r", title="ImageNet-R", heading="I-R", classes=200, images=30000, class_hash="69b2c445e9f21cea",
        reader="wnids", wnids="imagenet_r", accuracy=0.740, augmix=False, shift=True,
        places=_places("imagenet-rendition/imagenet-r", "imagenet-r"), licence="MIT (code); images as published",
        get="https://github.com/hendrycks/imagenet-r",
    ),
    DatasetRow(
        name="imagenet-sketch", title="ImageNet-Sketch", heading="I-S", classes=1000, images=50889,
        class_hash="bbb03b5ee8f22041", reader="wnids", accuracy=0.461, augmix=False, shift=True,
        places=_places("imagenet-sketch/images", "ImageNet-Sketch/sketch", "ImageNet-Sketch"), licence="as published",
        get="https://github.com/HaohanWang/ImageNet-Sketch",
    ),
)
# fmt: on

datasets: Registry[DatasetRow] = Registry("dataset", of=DatasetRow)
row = datasets.get


def register(dataset: DatasetRow) -> DatasetRow:
    """Register a dataset by its name for the command line, the benchmark, tables and figures."""
    return datasets.add(dataset.name)(dataset)


for _row in (*FINE_GRAINED, *IMAGENET):
    register(_row)


def names() -> list[str]:
    """Return the names of all datasets: those of the paper in the order of its tables, then those of plug-ins."""
    return datasets.names()


def heading(name: str) -> str:
    """Return the column heading of a dataset: that of its row, or the name if it has none."""
    return row(name).heading if name in datasets else name


def in_order(chosen: Sequence[str]) -> list[str]:
    """Return the datasets in the order of the catalogue, followed by those that are not in it."""
    return [*(name for name in datasets if name in chosen), *(name for name in chosen if name not in datasets)]
