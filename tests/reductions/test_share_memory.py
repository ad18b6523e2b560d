"""is_shared, share_memory, share_memory_: a question, a copy, and a move in place."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.arrays import FORMS, differences
from support.carriers import Carrier

import mp_all as mp

# NumPy puts an object of its own between such a view and its base.


class Sub(np.ndarray):
    """A subclass without methods."""


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[2:5],
        lambda a: a[::-1],
        lambda a: a.reshape(2, 5),
        lambda a: a.T,
        lambda a: a.view("u1"),
        lambda a: np.asarray(memoryview(a)),
        lambda a: np.lib.stride_tricks.as_strided(a, (3,), (8,)),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 4),
        lambda a: np.broadcast_to(a, (3, 10)),
        lambda a: a.view(Sub),
        lambda a: a[0:0],
    ],
)
def test_a_view_of_a_shared_array_is_shared_and_a_copy_is_not(strategy: str, view: Callable) -> None:
    shared, private = mp.shared.array(np.arange(10.0)), np.arange(10.0)
    assert mp.is_shared(view(shared)) is True
    assert mp.is_shared(view(private)) is False
    assert mp.is_shared(view(shared).copy()) is False


@pytest.mark.parametrize("function", [mp.is_shared, mp.share_memory, mp.share_memory_])
@pytest.mark.parametrize("thing", [None, 3, [1, 2], b"abc", np.float64(3)], ids=repr)
def test_an_object_that_is_not_an_array_is_a_type_error_with_its_type(function: Callable, thing: object) -> None:
    with pytest.raises(TypeError, match=type(thing).__name__):
        function(thing)


def test_share_memory_makes_a_shared_copy(strategy: str) -> None:
    for name, form in FORMS.items():
        private = form(np.array)
        expected = private.copy(order="K")
        shared = mp.share_memory(private)
        assert (mp.is_shared(shared), mp.is_shared(private)) == (True, False), name
        assert not np.shares_memory(shared, private), name
        assert shared.flags.writeable, name
        assert differences(expected, shared, shared=False) == [], name


class Tagged(np.ndarray):
    tag: Any = None


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_share_memory_keeps_the_class_the_attributes_and_the_mask(strategy: str, tmp_path: Path) -> None:
    masked: Any = np.ma.masked_array(np.arange(6.0), [0, 1, 0, 0, 0, 0], fill_value=-1)
    shared = mp.share_memory(masked)
    assert (mp.is_shared(shared), mp.is_shared(shared.mask), shared.fill_value) == (True, True, -1)
    assert shared.sum() == masked.sum() == 14
    shared[0] = np.ma.masked
    assert masked.sum() == shared.sum() == 14
    assert masked.mask.sum() == 1
    assert mp.share_memory(shared) is shared
    for each in (np.matrix([[1, 2], [3, 4]]), np.rec.array([(1, 2.0)]), np.ma.masked_array([1, 2])):
        copy = mp.share_memory(each)
        assert (type(copy), mp.is_shared(copy), np.array_equal(copy, each)) == (type(each), True, True)
    tagged = np.arange(6).reshape(2, 3).T.view(Tagged)
    tagged.tag = ["a tag"]
    copy = mp.share_memory(tagged)
    assert (type(copy), copy.tag, copy.strides, copy.tolist()) == (Tagged, ["a tag"], tagged.strides, tagged.tolist())
    mapped = np.memmap(tmp_path / "data", shape=3, mode="w+")
    assert type(mp.share_memory(mapped[:2].copy())) is np.ndarray


def test_share_memory_of_a_shared_array_is_the_array_itself(strategy: str) -> None:
    shared = mp.shared.zeros(3)
    view = shared[1:]
    assert mp.share_memory(shared) is shared
    assert mp.share_memory(view) is view


@pytest.mark.parametrize("function", [mp.share_memory, mp.share_memory_])
def test_python_objects_cannot_be_shared(function: Callable) -> None:
    with pytest.raises((TypeError, ValueError), match="object"):
        function(np.array([None, "text"], dtype=object))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(10.0),
        lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        lambda: np.array(5),
        lambda: np.zeros((3, 0)),
        lambda: np.zeros(4, [("a", "i1"), ("b", ">f8")]),
        lambda: np.ones(1 << 20, "u1"),
    ],
)
def test_share_memory_in_place_moves_the_data(echo: Carrier, make: Callable) -> None:
    array = make()
    before, where, identity = array.copy(order="K"), tasks.describe(array), id(array)
    result = mp.share_memory_(array)
    assert result is array
    del result
    assert id(array) == identity
    assert mp.is_shared(array)
    assert tasks.describe(array) == where
    assert array.tobytes() == before.tobytes()
    if array.size and not array.dtype.names:
        echo.call(tasks.fill, array, 77)
        assert (array == 77).all()


def test_share_memory_in_place_keeps_a_read_only_array_read_only(strategy: str) -> None:
    array = np.arange(10)
    array.flags.writeable = False
    mp.share_memory_(array)
    assert mp.is_shared(array)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_share_memory_in_place_leaves_a_shared_array_alone(strategy: str) -> None:
    array = mp.shared.zeros(3)
    address = array.ctypes.data
    view = array[1:]
    assert mp.share_memory_(array) is array
    assert array.ctypes.data == address
    assert np.shares_memory(view, array)


def test_share_memory_in_place_refuses_an_array_with_a_view(strategy: str) -> None:
    array = np.arange(10)
    view = array[2:4]
    with pytest.raises(ValueError, match="refer"):
        mp.share_memory_(array)
    assert not mp.is_shared(array)
    assert np.shares_memory(array, view)
    del view
    assert mp.is_shared(mp.share_memory_(array))


def test_share_memory_in_place_refuses_an_array_with_a_memoryview(strategy: str) -> None:
    array = np.arange(10)
    with memoryview(array), pytest.raises(ValueError, match="refer"):
        mp.share_memory_(array)
    assert not mp.is_shared(array)


def test_share_memory_in_place_refuses_an_array_with_a_second_name(strategy: str) -> None:
    array = np.arange(10)
    holder = [array]
    with pytest.raises(ValueError, match="refer"):
        mp.share_memory_(array)
    assert not mp.is_shared(holder[0])


PLACES = {
    "a global variable": "array = np.arange(10)\nresult = mp.share_memory_(array)",
    "an attribute": "mp.x = np.arange(10)\nresult = mp.share_memory_(mp.x)",
    "an item of a list": "items = [np.arange(10)]\nresult = mp.share_memory_(items[0])",
    "a local variable": """
def work():
    array = np.arange(10)
    return mp.share_memory_(array)
result = work()
""",
    "a variable of an enclosing function": """
def work():
    array = np.arange(10)
    return (lambda: mp.share_memory_(array))()
result = work()
""",
    "none": "result = mp.share_memory_(np.arange(10))",
}


@pytest.mark.parametrize("place", PLACES)
def test_share_memory_in_place_moves_an_array_wherever_its_one_reference_is(place: str, strategy: str) -> None:
    # Compiled here: pytest keeps what it finds in an assert, and that would be one more reference.
    names: dict[str, Any] = {"np": np, "mp": SimpleNamespace(share_memory_=mp.share_memory_)}
    exec(PLACES[place], names)
    assert mp.is_shared(names["result"])


def test_share_memory_in_place_refuses_a_global_array_with_a_second_name(strategy: str) -> None:
    names: dict[str, Any] = {"np": np, "mp": mp}
    with pytest.raises(ValueError, match="refer"):
        exec("array = np.arange(10)\nother = array\nmp.share_memory_(array)", names)
    assert not mp.is_shared(names["array"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(10)[2:5],
        lambda: np.arange(10).reshape(2, 5),
        lambda: np.frombuffer(bytearray(8), "u1"),
        lambda: np.broadcast_to(np.arange(3), (2, 3)),
    ],
)
def test_share_memory_in_place_refuses_an_array_that_does_not_own_its_data(make: Callable) -> None:
    array = make()
    with pytest.raises(ValueError, match="own"):
        mp.share_memory_(array)
    assert not mp.is_shared(array)


def test_share_memory_in_place_refuses_a_subclass() -> None:
    array = np.ndarray.__new__(Sub, (3,))
    with pytest.raises(ValueError, match="Sub"):
        mp.share_memory_(array)


def test_the_old_memory_is_freed_and_the_new_one_with_the_array(strategy: str) -> None:
    before = mp.memory_stats()["live_bytes"]
    array = np.zeros(1 << 20, "u1")
    mp.share_memory_(array)
    assert mp.memory_stats()["live_bytes"] == before + (1 << 20)
    reference = weakref.ref(array)
    del array
    gc.collect()
    assert reference() is None
    assert mp.memory_stats()["live_bytes"] == before


def test_share_memory_in_place_leaves_an_array_that_numpy_can_use(strategy: str) -> None:
    for count in (1, 100, 1 << 16):
        array = np.arange(count)
        mp.share_memory_(array)
        array += 1
        assert np.concatenate([array, array]).sum() == count * (count + 1)
        with pytest.raises(ValueError, match="own"):
            array.resize(count + 10)
        array.setflags(write=False)
        array.setflags(write=True)
        array.sort()
        assert array[-1] == count


def test_nothing_crashes_at_exit() -> None:
    program = """
import numpy as np, mp_all as mp
held = [mp.share_memory_(np.arange(n)) for n in range(1, 5000, 500)]
held.append(held)
np.keep = mp.shared.zeros(10)
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
