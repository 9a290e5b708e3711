"""Trees of datasets' classes: those of the catalogue, or a file ``tree.csv`` beside the images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from poise.calibration.tree import ARROW, Tree
from poise.text import as_words

FILE = "tree.csv"  # one path such as "animal > cat > tabby" for each class, in the column "path"
Branches = Mapping[str, str]  # the classes below each node, by the node's path; "" for all that are not named

_CATS = "abyssinian, bengal, birman, bombay, british shorthair, egyptian mau, maine coon, persian, ragdoll"
PETS: Branches = {"cat": f"{_CATS}, russian blue, siamese, sphynx", "dog": ""}
CALTECH101: Branches = {  # an everyday tree, written before anything was measured
    "animal > mammal": "beaver, dalmatian, dolphin, elephant, gerenuk, hedgehog, kangaroo, llama, okapi, panda, "
    "platypus, rhino",
    "animal > mammal > cat": "cougar body, cougar face, leopard, wild cat",
    "animal > bird": "emu, flamingo, flamingo head, ibis, pigeon, rooster",
    "animal > reptile": "brontosaurus, crocodile, crocodile head, hawksbill, stegosaurus",
    "animal > sea animal": "bass, crab, crayfish, lobster, nautilus, octopus, sea horse, starfish, trilobite",
    "animal > small animal": "ant, butterfly, dragonfly, mayfly, scorpion, tick",
    "plant": "bonsai, joshua tree, lotus, strawberry, sunflower, water lilly",
    "vehicle": "airplane, car side, ferry, helicopter, inline skate, ketch, motorbike, schooner, wheelchair",
    "musical instrument": "accordion, electric guitar, euphonium, grand piano, mandolin, saxophone, metronome, "
    "gramophone",
    "building": "minaret, pagoda, pyramid",
    "furniture": "ceiling fan, chair, chandelier, lamp, windsor chair, menorah",
    "device": "binocular, camera, cellphone, headphone, laptop, revolver, cannon, stapler, scissors, wrench, watch",
    "figure": "buddha, face, garfield, snoopy, brain, yin yang",
    "thing": "anchor, barrel, cup, dollar bill, ewer, pizza, soccer ball, stop sign, umbrella",
}


def class_paths(branches: Branches, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the path of each class.

    >>> class_paths({"cat": "tabby, siamese", "dog": ""}, ["beagle", "tabby"])
    ('dog > beagle', 'cat > tabby')
    """
    above = {name.strip(): node for node, names in branches.items() for name in names.split(",") if name.strip()}
    rest = next((node for node, names in branches.items() if not names), "")
    found = ((above.get(as_words(name).lower(), rest), name) for name in classes)
    return tuple(f"{node}{ARROW}{name}" if node else name for node, name in found)


def find_tree(folder: Path, root: Path) -> tuple[str, ...]:
    """Return the paths in the file ``tree.csv`` in a folder, or above it up to ``root``; none if there is no file."""
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            from poise.prompts.labels import read_labels  # its package imports torch, which readers do without

            return tuple(read_labels(place / FILE))
        if place == root:
            break
    return ()


def class_tree(classes: Sequence[str], paths: Sequence[str]) -> Tree:
    """Return the tree of classes, each with its path in ``paths``, in any order; repeated names get a number.

    Raises:
        InvalidLabelsError: The paths are not a tree of these classes.
    """
    times = Counter(map(as_words, classes))
    if max(times.values()) == 1 or len(paths) != len(classes):
        return Tree(classes, paths)
    unique = [name if times[as_words(name)] == 1 else f"{name} ({at})" for at, name in enumerate(classes)]
    lines = [path.split(ARROW)[:-1] for path in paths]  # ImageNet has two cranes: paths are in the order of the classes
    return Tree(unique, [ARROW.join([*line, name]) for line, name in zip(lines, unique, strict=True)])
