"""S2: a private array is sent by one copy, made by the sender; the receiver owns the copy that arrives."""

from __future__ import annotations

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier, Fleet

import mp_all as mp

SMALL, LARGE = 10, 1 << 18
SIZES = pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])


def write_and_answer(array: np.ndarray) -> tuple[bool, bool, float]:
    writeable = array.flags.writeable
    before = bool((array == 1).all())
    array[...] = 2
    return writeable, before, float(array.sum())


def make_private(count: int) -> np.ndarray:
    return np.ones(count)


def make_keep_private(count: int) -> np.ndarray:
    array = np.ones(count)
    tasks.keep(array)
    return array


def arrived_as(array: np.ndarray) -> tuple[bool, int]:
    return mp.is_shared(array), mp.memory_stats()["copied_bytes"]


@SIZES
def test_a_private_array_arrives_as_a_writable_copy(carrier: Carrier, count: int) -> None:
    array = np.ones(count)
    assert carrier.call(write_and_answer, array) == (True, True, 2 * count)
    assert (array == 1).all()


@SIZES
def test_the_senders_array_stays_private(carrier: Carrier, count: int) -> None:
    array = np.zeros(count)
    carrier.call(tasks.keep, array)
    assert not mp.is_shared(array)
    array[...] = 3
    assert carrier.again(tasks.kept_values) == [[0] * count]


@SIZES
def test_a_private_result_arrives_as_a_writable_copy(carrier: Carrier, count: int) -> None:
    result = carrier.call(make_keep_private, count)
    assert result.flags.writeable
    result[...] = 4
    assert carrier.again(tasks.kept_values) == [[1] * count]


def test_each_message_is_a_copy_of_its_own(carrier: Carrier) -> None:
    array = np.zeros(LARGE)
    carrier.call(tasks.keep, array)
    array[...] = 1
    carrier.again(tasks.keep_and_fill, array, 2)
    kept = carrier.again(tasks.recall)
    assert [float(k.max()) for k in kept] == [0, 2]
    assert not np.shares_memory(*kept)


def test_the_copy_is_made_once_and_by_the_sender(carrier: Carrier) -> None:
    array = np.zeros(LARGE)
    carrier.call(tasks.forget)
    here, there = mp.memory_stats()["copied_bytes"], carrier.again(tasks.copied_bytes)
    assert carrier.again(arrived_as, array) == (True, there)
    assert mp.memory_stats()["copied_bytes"] == here + array.nbytes


def test_the_arguments_of_a_process_are_copied_once_or_inherited(
    fleet: Fleet, start_method: str, strategy: str
) -> None:
    carrier = fleet.get("process", start_method)
    array = np.zeros(LARGE)
    here = mp.memory_stats()["copied_bytes"]
    shared, _ = carrier.call(arrived_as, array)
    # A forked child has the array as it is, copy-on-write: nothing was sent.
    sent = start_method != "fork"
    assert shared == sent
    assert mp.memory_stats()["copied_bytes"] == here + array.nbytes * sent
    carrier.rest()


def test_a_large_result_is_copied_once_and_by_the_sender(carrier: Carrier) -> None:
    carrier.call(tasks.forget)
    here, there = mp.memory_stats()["copied_bytes"], carrier.again(tasks.copied_bytes)
    result = carrier.again(make_private, LARGE)
    assert mp.is_shared(result)
    assert mp.memory_stats()["copied_bytes"] == here
    assert carrier.again(tasks.copied_bytes) == there + result.nbytes


def test_a_view_takes_its_own_bytes_and_not_its_base(carrier: Carrier) -> None:
    base = np.arange(1 << 20, dtype="f8").reshape(1024, 1024)
    view = base[3:515, 5:517]
    carrier.call(tasks.forget)
    before = mp.memory_stats()["copied_bytes"]
    result = carrier.again(tasks.echo, view)
    assert np.array_equal(result, view)
    assert mp.memory_stats()["copied_bytes"] == before + view.nbytes
    assert result.nbytes <= mp.memory_stats()["live_bytes"] < base.nbytes // 2


def test_a_small_private_array_travels_inside_the_message(carrier: Carrier) -> None:
    carrier.call(tasks.forget)
    here, there = mp.memory_stats()["copied_bytes"], carrier.again(tasks.copied_bytes)
    assert carrier.again(arrived_as, np.zeros(SMALL)) == (False, there)
    assert not mp.is_shared(carrier.again(make_private, SMALL))
    assert mp.memory_stats()["copied_bytes"] == here


def test_the_same_private_array_twice_in_one_message_arrives_as_one(carrier: Carrier) -> None:
    array = np.zeros(LARGE)
    first, second = carrier.call(tasks.echo, [array, array])
    assert first is second
