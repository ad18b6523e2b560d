"""`shared.frozen`: one read-only copy of a nested object, for all processes."""

from __future__ import annotations

import os
import pickle
from decimal import Decimal
from fractions import Fraction
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tasks
from support.carriers import Carrier

import mp_all as mp
from mp_reductions.frozen import FrozenDict, FrozenList, rebuild_frozen

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.recursive(scalars, lambda each: st.tuples(each, each), max_leaves=3)
objects = st.recursive(
    scalars,
    lambda each: st.lists(each) | st.tuples(each, each) | st.dictionaries(keys, each) | st.sets(scalars, max_size=3),
    max_leaves=20,
)


def thawed(thing: Any) -> Any:
    """
    Return a frozen object as ordinary ones.
    """
    if isinstance(thing, FrozenList):
        return [thawed(each) for each in thing]
    if isinstance(thing, FrozenDict):
        return {key: thawed(each) for key, each in thing.items()}
    return thing


@settings(max_examples=50)
@given(st.lists(objects))
def test_a_list_is_read_as_it_was_written(items: list[Any]) -> None:
    copy = mp.shared.frozen(items)
    assert len(copy) == len(items)
    assert list(copy) == items
    assert [copy[k] for k in range(-len(items), len(items))] == [*items, *items]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            copy[index]
    assert list(copy[1:-1]) == items[1:-1]
    assert list(copy[::-2]) == items[::-2]
    assert list(copy[1:][::3]) == items[1:][::3]


@settings(max_examples=50)
@given(st.dictionaries(keys, objects))
def test_a_dict_is_read_as_it_was_written(items: dict[Any, Any]) -> None:
    copy = mp.shared.frozen(items)
    assert dict(copy) == items
    assert list(copy) == list(items)
    assert list(copy.values()) == list(items.values())
    for key, value in items.items():
        assert copy[key] == value and key in copy
    assert copy.get("no such key, surely", 7) == 7
    with pytest.raises(KeyError):
        copy["no such key, surely"]


def test_equal_keys_of_different_types_are_one_key() -> None:
    copy = mp.shared.frozen({1: "one", 2.0: "two", (1, "a"): "pair"})
    assert (copy[True], copy[1.0], copy[2], copy[1.0, "a"]) == ("one", "one", "two", "pair")
    assert "1" not in copy and b"1" not in copy and frozenset() not in copy
    with pytest.raises(TypeError, match="unhashable"):
        copy[[]]


def test_large_nested_containers_are_frozen_and_small_ones_are_ordinary() -> None:
    coco = {
        "images": [{"id": k, "name": f"{k}.jpg"} for k in range(1000)],
        "info": {"year": 2017, "large": {"inner": list(range(500))}},
        "few": [1, [2, 3]],
        "pair": (tuple(range(300)), {}),
    }
    copy = mp.shared.frozen(coco)
    assert isinstance(copy["images"], FrozenList) and copy["images"][999] == {"id": 999, "name": "999.jpg"}
    assert copy["info"]["large"]["inner"][499] == 499
    assert copy["few"] == [1, [2, 3]] and copy["info"]["year"] == 2017
    assert list(copy["pair"][0]) == list(range(300)) and copy["pair"][1] == {}
    assert repr(copy["images"]) == "<frozen list of 1000 items>" and repr(copy) == "<frozen dict of 4 items>"


def test_large_arrays_are_read_only_views_of_the_shared_memory() -> None:
    item = {"mask": np.arange(1000.0).reshape(20, 50).T, "box": np.arange(4), "text": np.array(["a", "b"])}
    copy = mp.shared.frozen([item, item])
    mask = copy[1]["mask"]
    assert np.array_equal(mask, item["mask"]) and mask.ctypes.data % 64 == 0
    assert mp.is_shared(mask) and np.shares_memory(mask, copy[1]["mask"])
    assert not mask.flags.writeable
    assert copy[0]["box"].tolist() == [0, 1, 2, 3] and copy[0]["text"].tolist() == ["a", "b"]
    del copy
    assert mask[1, 1] == 51  # a view keeps the memory


def test_changing_what_was_read_changes_nothing() -> None:
    copy = mp.shared.frozen([{"a": [1]}])
    copy[0]["a"].append(2)
    assert copy[0] == {"a": [1]}
    for change in (lambda: copy.__setitem__(0, 1), lambda: copy.append(1)):
        with pytest.raises(AttributeError):
            change()


def read(frozen: Any) -> tuple[int, list[Any], Any]:
    return os.getpid(), [thawed(frozen[k]) for k in (0, -1)], thawed(frozen[1:3])


def look_up(frozen: Any, *keys: Any) -> list[Any]:
    return [frozen[key] for key in keys]


def test_every_channel_carries_a_handle(carrier: Carrier) -> None:
    items = [{"id": k, "text": str(k) * 100} for k in range(2000)]
    copy = mp.shared.frozen(items)
    message = bytes(ForkingPickler.dumps(copy))
    assert len(message) < 300
    ForkingPickler.loads(message)
    pid, ends, middle = carrier.call(read, copy)
    assert pid != os.getpid()
    assert (ends, middle) == ([items[0], items[-1]], items[1:3])
    assert carrier.call(read, copy[10:20:2])[1] == [items[10], items[18]]


def test_a_child_with_other_hashes_finds_the_keys(echo: Carrier) -> None:
    copy = mp.shared.frozen({f"name {k}": k for k in range(1000)} | {(k, "x"): -k for k in range(5)})
    assert echo.call(look_up, copy, "name 0", "name 999", (4, "x")) == [0, 999, -4]
    assert echo.call(tasks.echo, copy)["name 5"] == 5


def test_its_memory_returns(strategy: str) -> None:
    before = mp.memory_stats()["live_bytes"]
    copy = mp.shared.frozen(["x" * 1000] * 1000)
    part = copy[5:7]
    assert mp.memory_stats()["live_bytes"] >= before + 1_000_000
    del copy
    assert part[0] == "x" * 1000
    del part
    assert mp.memory_stats()["live_bytes"] == before


def test_by_value_it_arrives_as_a_copy() -> None:
    copy = mp.shared.frozen([{"a": np.zeros(1000)}, 2])
    mp.set_sharing(False)
    try:
        result = ForkingPickler.loads(ForkingPickler.dumps(copy))
    finally:
        mp.set_sharing(True)
    assert result[1] == 2 and not mp.is_shared(result[0]["a"])
    with pytest.raises(TypeError, match="cannot be pickled to be stored"):
        pickle.dumps(copy)


@pytest.mark.parametrize("obj", [5, "text", {1, 2}, np.zeros(3), None, iter([])])
def test_an_object_that_is_no_list_tuple_or_dict_is_refused(obj: Any) -> None:
    with pytest.raises(TypeError, match="frozen takes a list, a tuple or a dict, not"):
        mp.shared.frozen(obj)


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="not frozenset"):
        mp.shared.frozen({frozenset(): 1})


@pytest.mark.parametrize(
    ("root", "rows"),
    [(-8, None), (1 << 40, None), (8, None), (3, None), (-1, (0, 5, 1)), (0, (0, 11, 1)), (0, (-1, 3, 1))],
)
def test_a_handle_that_reaches_beyond_its_block_is_an_error(root: int, rows: Any) -> None:
    copy = mp.shared.frozen(list(range(10)))
    rebuild, (block, own, _) = copy.__reduce__()
    assert rebuild is rebuild_frozen
    with pytest.raises((ValueError, TypeError)):
        rebuild_frozen(block, own + root if rows else root, rows)


def test_equal_numbers_are_one_key_whatever_their_types() -> None:
    numbers = {number: number * 10 for number in range(300)}
    frozen = mp.shared.frozen(numbers)
    for key in (np.int64(1), np.float32(2), Decimal(3), Fraction(4), np.True_):
        assert frozen[key] == frozen.get(key) == numbers[key] and key in frozen
    assert frozen.get(np.int64(1000)) is None
    assert mp.shared.frozen({np.int64(5): "a", (np.int64(6), Decimal("0.5")): "b"})[6, 0.5] == "b"


def test_an_index_that_is_out_of_range_is_named() -> None:
    with pytest.raises(IndexError, match="index 7 is out of range: the frozen list has 3 items"):
        mp.shared.frozen([1, 2, 3])[7]
