"""Labels in a tree: the probability of a node is the sum of its labels', and the answer may be a node.

From the root, `Tree.descend` goes to the most probable child until it is at a label, so that probabilities fall along
its path. The answer at a threshold is the last node of the path that reaches it. A node is right if it is the correct
label or one of its ancestors; a node that contains all labels says nothing, and is never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poise.calibration.certify import NEVER
from poise.errors import InvalidLabelsError
from poise.metrics.sample import Bools, Floats, Ints
from poise.text import as_words, first_few

ARROW = " > "  # between the nodes of a written path, from the root to the label
_LISTED = 5  # names in an error message


@dataclass(frozen=True, eq=False)
class Descent:
    """The paths of N images through a tree.

    Attributes:
        nodes: positions in `Tree.names` [N, depth], from the root's child to a label; -1 after it.
        values: their probabilities [N, depth], which fall along the path; `NEVER` after the label.
    """

    nodes: Ints
    values: Floats

    def depth_at(self, threshold: float) -> Ints:
        """Return how many nodes of each path [N] reach the threshold; 0 if none does."""
        return np.asarray((self.values >= threshold).sum(1))


class Tree:
    """A tree whose leaves are the labels.

    Args:
        labels: of the classifier.
        parents: the parent of each label and of each inner node, "" or None for one directly below the root; or a path
            from the root for each label, such as "animal > cat > tabby cat".

    Raises:
        InvalidLabelsError: A label has no parent in it, a node has two parents, parents form a cycle, a label is the
            parent of another one, or a node has no label below it.

    >>> tree = Tree(["tabby", "siamese", "beagle"], {"tabby": "cat", "siamese": "cat", "beagle": "dog"})
    >>> tree.paths
    ('cat > tabby', 'cat > siamese', 'dog > beagle')
    >>> tree.probabilities(np.array([[0.4, 0.3, 0.3]]))[0, 3:].round(2).tolist()
    [0.7, 0.3]
    """

    def __init__(self, labels: Sequence[str], parents: Mapping[str, str | None] | Sequence[str]) -> None:
        above = _parents(labels, parents)
        self.labels = tuple(labels)
        own = {as_words(label): label for label in labels}
        lines = [_line(as_words(label), above) for label in labels]  # from the root's child to the label
        inner = dict.fromkeys(name for line in lines for name in line[:-1])
        if clash := [name for name in inner if name in own]:
            raise InvalidLabelsError(
                f"Labels are parents of other labels: {_listed(clash)}.",
                hint="Labels are the leaves of a tree: give such a class a label of its own, such as 'other dog'.",
            )
        if unused := [name for name in above if name not in own and name not in inner]:
            raise InvalidLabelsError(
                f"No label is below these nodes: {_listed(unused)}.", hint="Add their labels, or leave them out."
            )
        self.names = (*self.labels, *inner)  # the labels, then the inner nodes
        self.paths = tuple(ARROW.join([*line[:-1], label]) for line, label in zip(lines, self.labels, strict=True))
        at = {name: row for row, name in enumerate((*own, *inner))}
        self.lines = [[at[name] for name in line] for line in lines]
        self.members = np.zeros((len(self.names), len(self.labels)), dtype=bool)  # whether a label is below a node
        children: dict[int, dict[int, None]] = {}  # of each node; -1 is the root
        for leaf, line in enumerate(self.lines):
            self.members[line, leaf] = True
            for parent, child in zip([-1, *line[:-1]], line, strict=True):
                children.setdefault(parent, {})[child] = None
        self.children = {parent: np.array([*found]) for parent, found in children.items()}
        self.root = -1
        while len(self.children[self.root]) == 1 and int(self.children[self.root][0]) in self.children:
            self.root = int(self.children[self.root][0])  # contains all labels

    def probabilities(self, probs: Floats) -> Floats:
        """Return the probabilities [N, nodes] of all nodes, in the order of `names`, from those of the labels."""
        inner = self.members[len(self.labels) :].T.astype(np.float64)
        return np.concatenate([probs, np.minimum(probs.astype(np.float64) @ inner, 1.0)], axis=1)

    def descend(self, probs: Floats) -> Descent:
        """Return the path of each image [N] from the probabilities [N, C] of its labels; of ties, the first child."""
        table = self.probabilities(probs)
        now, nodes, values = np.full(len(table), self.root), [], []
        while (going := np.isin(now, [*self.children])).any():
            step = np.full(len(table), -1)
            for parent in np.unique(now[going]):
                rows, below = np.flatnonzero(now == parent), self.children[int(parent)]
                step[rows] = below[table[rows][:, below].argmax(1)]
            now = np.where(going, step, -2)  # the path has ended
            nodes.append(step)
            values.append(np.where(going, table[np.arange(len(table)), step], NEVER))
        return Descent(np.stack(nodes, 1), np.minimum.accumulate(np.stack(values, 1), axis=1))

    def answers(self, probs: Floats, threshold: float) -> tuple[str | None, ...]:
        """Return the node that each image [N] is answered with at a threshold; None where no node reaches it."""
        found = self.descend(probs)
        depth = found.depth_at(threshold)
        rows = zip(found.nodes, depth, strict=True)
        return tuple(self.names[int(nodes[last - 1])] if last else None for nodes, last in rows)

    def thresholds(self, probs: Floats, labels: Ints) -> tuple[Floats, Floats]:
        """Return from which threshold downwards each image [N] is answered, and from which its answer is wrong."""
        found = self.descend(probs)
        right = (found.nodes >= 0) & self.members[found.nodes, labels[:, None]]
        return found.values[:, 0], np.where(right, NEVER, found.values).max(1)

    def heights(self, predicted: Ints, labels: Ints) -> Ints:
        """Return how many steps above a label the predicted and the correct one [N] meet; 0 where they are the same."""
        pairs = [(self.lines[one], self.lines[other]) for one, other in zip(predicted, labels, strict=True)]
        return np.array([max(len(one), len(other)) - len({*one} & {*other}) for one, other in pairs])

    def smallest(self, members: Bools) -> list[int]:
        """Return the fewest nodes that contain exactly these labels [C], as positions in `names`."""
        whole = np.asarray((self.members <= members).all(1))
        highest = (next(node for node in self.lines[leaf] if whole[node]) for leaf in np.flatnonzero(members))
        return list(dict.fromkeys(highest))


def _parents(labels: Sequence[str], given: Mapping[str, str | None] | Sequence[str]) -> dict[str, str]:
    """Return the parent of each node, "" for the root; names are as words."""
    above: dict[str, str] = {}
    if isinstance(given, Mapping):
        pairs = [(str(child), str(parent or "")) for child, parent in given.items()]
        if wrong := [name for pair in pairs for name in pair if ARROW.strip() in name.split()]:
            raise InvalidLabelsError(
                f"Nodes have names with '{ARROW.strip()}': {_listed(wrong)}.", hint="It separates the nodes of a path."
            )
    elif isinstance(given, str):
        raise InvalidLabelsError(f"parents is {given[:60]!r}.", hint="Give a dict, or a list of paths.")
    else:
        pairs = []
        for path in given:
            names = [name.strip() for name in str(path).split(ARROW)]
            pairs += zip(names, ["", *names[:-1]], strict=True)
    for child, parent in ((as_words(child).strip(), as_words(parent).strip()) for child, parent in pairs):
        if not child:
            raise InvalidLabelsError(
                "A node of the tree has no name.", hint="Write paths such as: animal > cat > tabby."
            )
        if above.setdefault(child, parent) != parent:
            raise InvalidLabelsError(
                f"'{child}' has two parents: '{above[child] or 'the root'}' and '{parent or 'the root'}'.",
                hint="Give each node one parent; a name stands for one node.",
            )
    if missing := [label for label in labels if as_words(label) not in above]:
        raise InvalidLabelsError(
            f"Labels have no parent: {_listed(missing)}.",
            hint="Give each a parent; '' for one directly below the root.",
        )
    return {**{parent: "" for parent in above.values() if parent}, **above}


def _line(name: str, above: Mapping[str, str]) -> list[str]:
    """Return the nodes from the root's child to this one."""
    line = [name]
    while above[line[-1]]:
        line.append(above[line[-1]])
        if line[-1] in line[:-1]:
            cycle = line[line.index(line[-1]) :][:_LISTED]
            raise InvalidLabelsError(
                f"Parents form a cycle: {ARROW.join(reversed(cycle))}.", hint="Each node needs a path to the root."
            )
    return line[::-1]


def _listed(names: Sequence[str]) -> str:
    return first_few([repr(name) for name in names], _LISTED)
