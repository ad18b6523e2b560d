"""S5: an array that returns to its sender, directly or through other processes, is the same memory."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from support import tasks
from support.carriers import TIMEOUT, Carrier

import mp_all as mp


def through_a_queue(thing: object) -> object:
    queue = mp.Queue()
    queue.put(thing)
    result = queue.get(timeout=TIMEOUT)
    queue.close()
    queue.join_thread()
    return result


def through_a_simple_queue(thing: object) -> object:
    queue = mp.SimpleQueue()
    queue.put(thing)
    result = queue.get()
    queue.close()
    return result


def through_a_pipe(thing: object) -> object:
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(thing)
        return reader.recv()


def through_the_pickler(thing: object) -> object:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


LOOPS = [through_a_queue, through_a_simple_queue, through_a_pipe, through_the_pickler]


def test_a_shared_array_comes_back_from_a_child_as_the_same_memory(carrier: Carrier) -> None:
    array = mp.shared.zeros(100)
    result = carrier.call(tasks.echo, array)
    assert np.shares_memory(result, array)
    result[50] = 1
    assert array[50] == 1


def test_a_result_sent_back_to_its_maker_is_its_own_memory_again(carrier: Carrier) -> None:
    result = carrier.call(tasks.make_and_keep, (100,), 0.0)
    carrier.again(tasks.keep_and_fill, result, 3)
    first, second = carrier.again(tasks.recall)
    assert np.shares_memory(first, second)
    assert carrier.again(tasks.kept_values) == [[3] * 100] * 2


@pytest.mark.parametrize("loop", LOOPS)
def test_a_shared_array_is_the_same_memory(strategy: str, loop) -> None:
    array = mp.shared.array(np.arange(10.0))
    result = loop(array)
    assert np.shares_memory(result, array)
    assert result.__array_interface__["data"] == array.__array_interface__["data"]
    result[3] = -1
    assert array[3] == -1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_view_is_the_same_part_of_the_same_memory(strategy: str, loop) -> None:
    array = mp.shared.array(np.arange(24.0).reshape(4, 6))
    view = array[::-2, 1:5:3]
    result = loop(view)
    assert tasks.describe(result) == tasks.describe(view)
    result[...] = -1
    assert (view == -1).all()
    assert (array == -1).sum() == view.size


@pytest.mark.parametrize("loop", LOOPS)
def test_a_block_is_the_same_memory(strategy: str, loop) -> None:
    block = mp.Block(100)
    result = loop(block)
    memoryview(result)[7] = 9
    assert memoryview(block)[7] == 9


@pytest.mark.parametrize("loop", LOOPS)
def test_a_private_array_is_still_copied(strategy: str, loop) -> None:
    array = np.zeros(1 << 16)
    result = loop(array)
    assert not np.shares_memory(result, array)
    result[...] = 1
    assert (array == 0).all()


def test_mappings_do_not_grow_with_the_messages(strategy: str) -> None:
    array = mp.shared.zeros(1000)
    mp.empty_cache()
    before = mp.memory_stats()["mappings"]
    held = [through_the_pickler(array[i:]) for i in range(100)]
    assert mp.memory_stats()["mappings"] == before
    assert all(np.shares_memory(view, array) for view in held)
