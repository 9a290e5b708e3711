from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from poise.evaluate.units import Plan, choose, stream

label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=80)


def ids(count):
    return [f"image-{index}" for index in range(count)]


@given(label_lists, st.integers(0, 100))
def test_a_larger_limit_only_adds_images(labels, limit):
    names = ids(len(labels))
    smaller, larger = choose(names, labels, limit or 1), choose(names, labels, (limit or 1) + 1)
    assert larger[: len(smaller)] == smaller
    assert len(smaller) == min(limit or 1, len(labels))


@given(label_lists, st.integers(1, 80))
def test_classes_appear_in_proportion(labels, limit):
    limit = min(limit, len(labels))
    chosen = Counter(labels[position] for position in choose(ids(len(labels)), labels, limit))
    for label, count in Counter(labels).items():
        assert abs(chosen[label] - count * limit / len(labels)) <= 1 + 1e-9 + len(set(labels)) / 2


def test_balanced_classes_are_covered_evenly():
    labels = [index // 20 for index in range(200)]  # split files list class after class
    chosen = Counter(labels[position] for position in choose(ids(200), labels, 30))
    assert set(chosen.values()) == {3}


@given(st.permutations(range(12)))
def test_the_order_of_the_dataset_does_not_change_the_choice(order):
    names, labels = ids(12), [index % 3 for index in range(12)]
    plainly = {names[position] for position in choose(names, labels, 5)}
    shuffled = choose([names[i] for i in order], [labels[i] for i in order], 5)
    assert {names[order[position]] for position in shuffled} == plainly


def test_no_limit_means_all():
    assert sorted(choose(ids(3), [0, 0, 1], 0)) == [0, 1, 2]
    assert sorted(choose(ids(3), [0, 0, 1], 9)) == [0, 1, 2]


@given(st.integers(0, 30), st.integers(1, 10), st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=3))
def test_units_cover_every_image_of_every_seed_once(count, chunk, seeds):
    units = Plan(tuple(seeds), chunk).units("set", "set", range(count))
    assert len({unit.id for unit in units}) == len(units)
    for seed in seeds:
        assert [i for unit in units if unit.seed == seed for i in unit.items] == list(range(count))
    assert all(len(unit.items) <= chunk for unit in units)


def test_unit_ids_and_paths():
    units = Plan((1, 2), 2).units("set", "folder", range(5))
    assert units[0].path == "folder/seed1/part-00000.parquet"
    assert units[-1].id == "folder/seed2/part-00002"


def test_an_ordered_stream_is_never_split_and_shuffled_by_its_seed():
    names = ids(40)
    first, second = Plan((1, 2), 3, ordered=True).units("set", "set", range(5, 25), names)
    assert sorted(first.items) == sorted(second.items) == list(range(5, 25))
    assert first.items != second.items
    assert list(first.items) == stream(names, range(5, 25), 1)
    assert [unit.id for unit in Plan((1, 2), 3, ordered=True).units("set", "set", range(20))] == [first.id, second.id]


@given(st.permutations(range(12)))
def test_a_stream_depends_only_on_seed_and_ids(order):
    names = ids(12)
    plainly = [names[position] for position in stream(names, range(12), 7)]
    shuffled = [names[i] for i in order]
    assert [shuffled[position] for position in stream(shuffled, range(12), 7)] == plainly


def test_streams_are_as_they_were():
    assert stream(ids(8), range(8), 1) == [5, 1, 0, 4, 7, 6, 3, 2]  # runs that were begun go on in the same order
