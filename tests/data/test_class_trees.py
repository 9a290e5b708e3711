"""Trees of datasets' classes: those of the catalogue fit its names, and a file replaces them."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise import data
from poise.data.class_trees import class_paths, class_tree
from poise.errors import InvalidLabelsError
from tests.data import trees
from tests.evaluate.attempt import make_images


@pytest.mark.parametrize(("name", "cats"), [("pets", 12), ("caltech101", 4)])
def test_trees_of_the_catalogue_have_all_classes_once(name: str, cats: int) -> None:
    row = data.row(name)
    classes = [row.edit(original) for original in trees.ORIGINAL[name]]
    paths = class_paths(row.tree, classes)
    tree = class_tree(classes, paths)
    assert len(tree.labels) == row.classes
    assert all(" > " in path for path in paths)  # no class is left beside the tree
    assert sum("cat > " in path for path in paths) == cats
    named = [name.strip() for names in row.tree.values() for name in names.split(",") if name.strip()]
    assert set(named) <= {label.lower() for label in classes}  # no name is misspelt


def test_a_file_beside_the_images(tmp_path: Path) -> None:
    make_images(tmp_path)
    plain = data.open_dataset(f"folder:{tmp_path}")
    assert plain.parents == ()
    (tmp_path / "tree.csv").write_text(
        "path\n" + "\n".join(f"thing > {name}" for name in plain.classes) + "\n", encoding="utf-8"
    )
    assert data.open_dataset(f"folder:{tmp_path}").parents == tuple(f"thing > {name}" for name in plain.classes)


def test_classes_that_share_a_name() -> None:
    tree = class_tree(["crane", "crane", "car"], ["animal > bird > crane", "machine > crane", "machine > car"])
    assert tree.paths == ("animal > bird > crane (0)", "machine > crane (1)", "machine > car")
    with pytest.raises(InvalidLabelsError, match="no parent: 'car'"):
        class_tree(["cat", "car"], ["animal > cat"])
