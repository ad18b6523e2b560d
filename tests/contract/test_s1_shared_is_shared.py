"""S1: an array in shared memory is shared, whoever sends it, whatever its size and form."""

from __future__ import annotations

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp


def double_the_even_ones(view: np.ndarray) -> dict:
    view *= 2
    return tasks.describe(view)


def write_through_one_and_read_the_other(pair: dict[str, np.ndarray]) -> tuple[bool, list[float]]:
    shares = np.shares_memory(pair["whole"], pair["part"])
    pair["whole"][...] = 9
    return shares, pair["part"].tolist()


def two_views_of_one_base() -> list[np.ndarray]:
    base = mp.shared.zeros(100)
    return [base[10:60], base[50:90], base]


@pytest.mark.parametrize("count", [1, 1000, 1 << 20])
def test_the_sender_sees_the_writes_of_the_receiver(carrier: Carrier, count: int) -> None:
    array = mp.shared.zeros(count)
    carrier.call(tasks.fill, array, 5)
    assert (array == 5).all()


@pytest.mark.parametrize("count", [1, 1000])
def test_the_receiver_sees_the_writes_of_the_sender(carrier: Carrier, count: int) -> None:
    array = mp.shared.zeros(count)
    carrier.call(tasks.keep, array)
    array[...] = 6
    assert carrier.again(tasks.kept_values) == [[6] * count]


@pytest.mark.parametrize("count", [1, 1 << 18])
def test_a_result_is_shared_with_the_child_that_made_it(carrier: Carrier, count: int) -> None:
    result = carrier.call(tasks.make_and_keep, (count,), 1.0)
    assert mp.is_shared(result)
    assert (result == 1).all()
    result[...] = 7
    kept = carrier.again(tasks.kept_values)
    assert kept == [[7] * count]


def test_a_view_keeps_its_place_and_its_strides(carrier: Carrier) -> None:
    base = mp.shared.array(np.arange(60.0).reshape(6, 10))
    expected = np.arange(60.0).reshape(6, 10)
    expected[4:0:-2, 1::3] *= 2
    view = base[4:0:-2, 1::3]
    assert carrier.call(double_the_even_ones, view) == tasks.describe(view)
    assert np.array_equal(base, expected)


def test_two_views_of_one_base_in_one_message_share_memory_there(carrier: Carrier) -> None:
    base = mp.shared.zeros(50)
    pair = {"whole": base, "part": base[10:14]}
    assert carrier.call(write_through_one_and_read_the_other, pair) == (True, [9, 9, 9, 9])
    assert base.tolist() == [9] * 50


def test_two_views_of_one_base_in_one_result_share_memory_here(carrier: Carrier) -> None:
    first, second, base = carrier.call(two_views_of_one_base)
    assert np.shares_memory(first, second)
    assert np.shares_memory(first, base)
    first[...] = 1
    second[...] = 2
    assert base.tolist() == [0] * 10 + [1] * 40 + [2] * 40 + [0] * 10


def test_the_same_array_in_two_messages_is_one_memory_there(carrier: Carrier) -> None:
    array = mp.shared.zeros(8)
    carrier.call(tasks.keep, array)
    carrier.again(tasks.keep, array[4:])
    carrier.again(tasks.fill, array, 3)
    assert carrier.again(tasks.kept_values) == [[3] * 8, [3] * 4]


def test_sharing_copies_nothing(carrier: Carrier) -> None:
    array = mp.shared.zeros(1 << 18)
    here = mp.memory_stats()["copied_bytes"]
    carrier.call(tasks.keep, array)
    there = carrier.again(tasks.copied_bytes)
    result = carrier.again(tasks.recall)[0]
    assert mp.is_shared(result)
    assert mp.memory_stats()["copied_bytes"] == here
    assert carrier.again(tasks.copied_bytes) == there


def test_it_stays_shared_after_the_sender_has_dropped_it(carrier: Carrier) -> None:
    array = mp.shared.full(1000, 4.0)
    carrier.call(tasks.keep, array)
    del array
    back = carrier.again(tasks.recall)[0]
    assert (back == 4).all()
    back[...] = 5
    assert carrier.again(tasks.kept_values) == [[5] * 1000]
