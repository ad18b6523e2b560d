"""shared.*: NumPy's signatures and NumPy's results, in shared memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import arrays, tasks
from support.carriers import Carrier

import mp_all as mp
from mp_all import shared

NAMES = [
    "empty",
    "zeros",
    "ones",
    "full",
    "array",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "frombuffer",
]
MODEL = np.arange(24, dtype=">i4").reshape(2, 3, 4)
TWO_D = [[1, 2], [3, 4]]

CALLS: list[tuple[str, tuple, dict]] = [
    ("zeros", (3,), {}),
    ("zeros", ((2, 3),), {}),
    ("zeros", ([2, 3], "f4"), {}),
    ("zeros", ((),), {}),
    ("zeros", (0,), {}),
    ("zeros", ((3, 0, 2), bool), {}),
    ("zeros", ((4, 5),), {"order": "F"}),
    ("zeros", (), {"shape": (2,), "dtype": "M8[s]"}),
    ("zeros", (2, arrays.PADDED), {}),
    ("zeros", (np.int64(3),), {"dtype": np.uint8}),
    ("ones", ((2, 2),), {}),
    ("ones", (3, "S4"), {}),
    ("ones", (5, ">c8"), {"order": "F"}),
    ("ones", (2, arrays.PADDED), {}),
    ("full", (3, 7), {}),
    ("full", ((2, 2), 1.5), {}),
    ("full", ((2, 2), 1.5), {"dtype": "i2"}),
    ("full", ((2, 2), "abc"), {}),
    ("full", ((3, 2), [1, 2]), {"order": "F"}),
    ("full", (3, np.datetime64("2020-01-01")), {}),
    ("array", (TWO_D,), {}),
    ("array", (5,), {}),
    ("array", (TWO_D, "f4"), {"order": "F"}),
    ("array", ("text",), {}),
    ("array", ([1, 2],), {"ndmin": 3}),
    ("array", (MODEL[::-1, :, ::2],), {}),
    ("array", (MODEL.T,), {}),
    ("array", (MODEL.T,), {"order": "C"}),
    ("array", (MODEL.T,), {"order": "A"}),
    ("array", (range(5),), {}),
    ("array", ([],), {}),
    ("zeros_like", (MODEL,), {}),
    ("zeros_like", (MODEL.T,), {}),
    ("zeros_like", (MODEL.T,), {"order": "C"}),
    ("zeros_like", (MODEL, "f8"), {"shape": (5,)}),
    ("zeros_like", (TWO_D,), {}),
    ("ones_like", (MODEL.T,), {"order": "F"}),
    ("ones_like", (MODEL,), {"dtype": bool}),
    ("full_like", (MODEL, 3), {}),
    ("full_like", (MODEL, 3.7), {}),
    ("full_like", (MODEL, 3.7), {"dtype": float, "shape": (2, 2)}),
    ("full_like", (MODEL.transpose(1, 0, 2), -1), {}),
    ("frombuffer", (b"abcdefgh",), {"dtype": "u1"}),
    ("frombuffer", (b"abcdefgh", "<u2"), {}),
    ("frombuffer", (b"abcdefgh", "<u2", 2), {}),
    ("frombuffer", (bytearray(b"abcdefgh"),), {"dtype": "<u2", "count": 2, "offset": 3}),
    ("frombuffer", (np.arange(4.0),), {}),
]
BARE: list[tuple[str, tuple, dict]] = [
    ("empty", ((2, 3), "i2", "F"), {}),
    ("empty", ((),), {}),
    ("empty", (7,), {}),
    ("empty_like", (MODEL.T,), {}),
    ("empty_like", (MODEL, float, "F"), {"shape": (3, 3)}),
]
WRONG: list[tuple[str, tuple, dict]] = [
    ("zeros", (-1,), {}),
    ("zeros", ((2, -3),), {}),
    ("zeros", ("abc",), {}),
    ("zeros", (1.5,), {}),
    ("zeros", (), {}),
    ("zeros", (3, "no such type"), {}),
    ("zeros", (3,), {"order": "X"}),
    ("zeros", ((1,) * 100,), {}),
    ("zeros", (3,), {"nonsense": 1}),
    ("full", ((2, 2), [1, 2, 3]), {}),
    ("full", (3, "abc"), {"dtype": int}),
    ("array", ([[1, 2], [3]],), {}),
    ("array", (["a"], int), {}),
    ("frombuffer", (b"abc", "<u2"), {}),
    ("frombuffer", (b"abcd", "u1", 5), {}),
    ("frombuffer", (b"abcd", "u1"), {"offset": 9}),
    ("frombuffer", (b"abcd", "u1"), {"offset": -1}),
    ("frombuffer", ("text",), {}),
]


def label(call: Any) -> str | None:
    return call if isinstance(call, str) else None


def outcome(function: Callable, arguments: tuple, named: dict) -> type[Exception] | None:
    try:
        function(*arguments, **named)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_numpys(name: str) -> None:
    ours = inspect.signature(getattr(shared, name)).parameters
    # NumPy 1.26 has no text signature for what is written in C, and `copy=None` came with NumPy 2.
    known = {
        "empty": ["shape", "dtype", "order"],
        "zeros": ["shape", "dtype", "order"],
        "ones": ["shape", "dtype", "order"],
        "full": ["shape", "fill_value", "dtype", "order"],
        "array": ["object", "dtype", "copy", "order", "subok", "ndmin"],
        "empty_like": ["prototype", "dtype", "order", "subok", "shape"],
        "zeros_like": ["a", "dtype", "order", "subok", "shape"],
        "ones_like": ["a", "dtype", "order", "subok", "shape"],
        "full_like": ["a", "fill_value", "dtype", "order", "subok", "shape"],
        "frombuffer": ["buffer", "dtype", "count", "offset"],
    }[name]
    assert list(ours)[: len(known)] == known
    assert {"like"} & set(ours) or name.endswith("_like")


@pytest.mark.parametrize(("name", "arguments", "named"), CALLS, ids=label)
def test_the_result_is_numpys_in_shared_memory(strategy: str, name: str, arguments: tuple, named: dict) -> None:
    expected = getattr(np, name)(*arguments, **named)
    result = getattr(shared, name)(*arguments, **named)
    assert type(result) is np.ndarray
    assert mp.is_shared(result)
    if name == "frombuffer":  # of a copy, which can be written
        expected = expected.copy()
    assert arrays.differences(expected, result, shared=True) == []


@pytest.mark.parametrize(("name", "arguments", "named"), BARE, ids=label)
def test_an_empty_result_has_numpys_form(strategy: str, name: str, arguments: tuple, named: dict) -> None:
    expected = getattr(np, name)(*arguments, **named)
    result = getattr(shared, name)(*arguments, **named)
    assert mp.is_shared(result)
    assert tasks.describe(result) == tasks.describe(expected)


@pytest.mark.parametrize(("name", "arguments", "named"), WRONG, ids=label)
def test_arguments_that_numpy_refuses_raise_the_same_exception(name: str, arguments: tuple, named: dict) -> None:
    expected = outcome(getattr(np, name), arguments, named)
    assert expected is not None
    assert outcome(getattr(shared, name), arguments, named) is expected


@pytest.mark.parametrize("name", ["empty", "zeros", "ones"])
@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "O")]])
def test_python_objects_cannot_be_shared(name: str, dtype: object) -> None:
    with pytest.raises(TypeError, match="object"):
        getattr(shared, name)(3, dtype=dtype)


def test_an_array_of_objects_cannot_be_shared() -> None:
    with pytest.raises(TypeError, match="object"):
        shared.array([None, "mixed", 3], dtype=object)
    with pytest.raises(TypeError, match="object"):
        shared.full(3, None)


@pytest.mark.parametrize("shape", [2**62, (2**31, 2**31), (2**40, 2**40)])
def test_an_absurd_shape_is_an_error_and_not_an_allocation(strategy: str, shape: Any) -> None:
    with pytest.raises((MemoryError, ValueError)):
        shared.zeros(shape)


def test_array_copies_even_a_shared_array(strategy: str) -> None:
    first = shared.zeros(10)
    second = shared.array(first)
    second[...] = 1
    assert first.tolist() == [0] * 10


def test_array_returns_an_ndarray_for_a_subclass() -> None:
    assert type(shared.array(np.ma.masked_less(np.arange(4), 2))) is np.ndarray
    assert type(shared.zeros_like(np.rec.fromarrays([[1], [2]]))) is np.ndarray


def test_an_array_over_a_block_is_the_block(strategy: str) -> None:
    block = mp.Block(80)
    array = shared.frombuffer(block, dtype=float)
    array[...] = 1
    assert mp.is_shared(array)
    assert bytes(memoryview(block)[:8]) == np.float64(1).tobytes()


@pytest.mark.parametrize("name", ["frombuffer", "asarray"])
def test_numpys_own_array_over_a_block_is_shared(echo: Carrier, name: str) -> None:
    block = mp.Block(80)
    array = np.frombuffer(block, dtype=float) if name == "frombuffer" else np.asarray(memoryview(block)).view(float)
    assert mp.is_shared(array)
    echo.call(tasks.fill, array, 2)
    assert array.tolist() == [2] * 10


def test_zeros_of_ten_gigabytes_use_no_memory_until_they_are_touched() -> None:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy("file_descriptor")
    try:
        array = shared.zeros(10 * 2**30, np.uint8)
        assert array[[0, 5 * 2**30, -1]].tolist() == [0, 0, 0]
        array[-1] = 1
        assert array[-1] == 1
    finally:
        mp.set_sharing_strategy(before)
