"""Arrays of every form, private or shared, and the meaning of "as it left" for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Make = Callable[..., np.ndarray]


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def unaligned(make: Make) -> np.ndarray:
    """Return numbers that begin at an odd byte."""
    return make(np.arange(41, dtype=np.uint8))[1:].view(np.float64)


NUMBERS = np.typecodes["AllInteger"] + np.typecodes["AllFloat"]
PLAIN = np.dtype([("x", "<f8"), ("y", ">i2", (2,)), ("name", "U3")])
PADDED = np.dtype([("flag", "u1"), ("x", "f8"), ("inner", [("a", "i1"), ("b", ">u4")])], align=True)
SPARSE = np.dtype({"names": ["b", "a"], "formats": ["<i2", "<i4"], "offsets": [12, 1], "itemsize": 24})
TITLED = np.dtype([(("the title", "short"), "i4"), ("other", "S2")])

# Each takes the function that makes an array of some data, `np.array` or `shared.array`, and returns
# what is sent.
FORMS: dict[str, Callable[[Make], np.ndarray]] = {
    **{
        f"dtype {np.dtype(code).name}": (lambda make, code=code: make(np.arange(24).astype(code)))
        for code in dict.fromkeys(NUMBERS)
    },
    "bool": lambda make: make([[True, False], [False, True]]),
    "nan with a payload": lambda make: make(np.array([0x7FF8DEADBEEF0001], "u8").view("f8")),
    "big endian": lambda make: make(np.arange(6, dtype=">i4")),
    "big endian complex": lambda make: make(np.arange(6, dtype=">c16")),
    "datetime": lambda make: make(np.array(["1970-01-01", "NaT", "2262-04-11"], "M8[ns]")),
    "datetime in steps of 25 s": lambda make: make(np.array([0, 25, 50], "M8[25s]")),
    "big endian timedelta": lambda make: make(np.array([1, 2, 3], ">m8[D]")),
    "timedelta without a unit": lambda make: make(np.array([1, 2]).view("m8")),
    "text": lambda make: make(["", "a", "häß", "\U0001f40d"]),
    "big endian text": lambda make: make(np.array(["ab", "c"], ">U2")),
    "bytes": lambda make: make(np.array([b"", b"a\0b", b"\xff" * 5], "S5")),
    "void": lambda make: make(np.frombuffer(b"abcdefghi", "V3")),
    "text of no length": lambda make: make(np.zeros(3, "U0")),
    "structured": lambda make: make(np.array([(1.5, (2, -3), "abc"), (0, (1, 1), "")], PLAIN)),
    "structured with padding": lambda make: make(np.array([(1, 2.5, (3, 4))] * 3, PADDED)),
    "structured with gaps and overlap": lambda make: make(np.array([(1, 2), (3, 4)], SPARSE)),
    "structured with titles": lambda make: make(np.array([(1, b"ab")], TITLED)),
    "one field": lambda make: make(np.array([(1, 2.5, (3, 4))] * 3, PADDED))["x"],
    "some fields": lambda make: make(np.array([(1, 2.5, (3, 4))] * 3, PADDED))[["flag", "inner"]],
    "0-d": lambda make: make(42.5),
    "0-d structured": lambda make: make(np.array((1.5, (2, -3), "abc"), PLAIN)),
    "empty": lambda make: make([]),
    "empty with a shape": lambda make: make(np.empty((3, 0, 2), ">f4")),
    "one element": lambda make: make([[[7]]]),
    "many axes": lambda make: make(np.arange(2.0).reshape((1,) * 31 + (2,))),
    "fortran order": lambda make: make(np.arange(12.0).reshape(3, 4), order="F"),
    "transposed": lambda make: make(np.arange(24.0).reshape(2, 3, 4)).transpose(1, 0, 2),
    "a tail": lambda make: make(np.arange(100.0))[37:],
    "every third": lambda make: make(np.arange(100.0))[::3],
    "columns": lambda make: make(np.arange(100.0).reshape(10, 10))[:, 2:7:2],
    "backwards": lambda make: make(np.arange(100.0))[::-1],
    "both axes backwards": lambda make: make(np.arange(24.0).reshape(4, 6))[::-2, ::-1],
    "a diagonal": lambda make: make(np.arange(25.0).reshape(5, 5)).diagonal(),
    "zero strides": lambda make: np.broadcast_to(make([1.0, 2.0, 3.0]), (4, 3)),
    "zero strides, writable": lambda make: np.lib.stride_tricks.as_strided(make([7.0]), (5,), (0,)),
    "overlapping windows": lambda make: np.lib.stride_tricks.as_strided(make(np.arange(9)), (5, 5), (8, 8)),
    "a new axis": lambda make: make(np.arange(6.0))[:, np.newaxis],
    "unaligned": unaligned,
    "another type's view": lambda make: make(np.arange(8, dtype="u1")).view("<u2"),
    "the real parts": lambda make: make(np.arange(5) + 2j).real,
    "read-only": lambda make: frozen(make(np.arange(10))),
    "read-only view": lambda make: frozen(make(np.arange(10))[2:8:2]),
    "large": lambda make: make(np.arange(1 << 18, dtype="f8")),
    "large and backwards": lambda make: make(np.arange(1 << 18, dtype="f8"))[::-1],
    "large fortran order": lambda make: make(np.arange(1 << 18, dtype="f8").reshape(512, 512), order="F"),
    "large read-only": lambda make: frozen(make(np.arange(1 << 18, dtype="f8"))),
    "large structured": lambda make: make(np.zeros(1 << 15, PADDED)),
}


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """
    Compare bit for bit, except the padding between fields.
    """
    if a.dtype.names:
        return all(same_values(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.char in "gG":  # an extended float has padding of its own
        return np.array_equal(a, b, equal_nan=True)
    return a.tobytes() == b.tobytes()


def differences(sent: np.ndarray, received: Any, shared: bool) -> list[str]:
    """
    Return the differences after a trip; a shared array keeps its strides, a private one its order.
    """
    found = []

    def compare(what: str, left: Any, arrived: Any) -> None:
        if left != arrived:
            found.append(f"{what}: {left!r} left, {arrived!r} arrived")

    compare("type", type(sent), type(received))
    compare("dtype", (sent.dtype, sent.dtype.str), (received.dtype, received.dtype.str))
    compare("fields", sent.dtype.fields, received.dtype.fields)
    compare("alignment", sent.dtype.isalignedstruct, received.dtype.isalignedstruct)
    compare("shape", sent.shape, received.shape)
    compare("writeable", sent.flags.writeable, received.flags.writeable)
    if sent.flags.forc:
        compare("C order", sent.flags.c_contiguous, received.flags.c_contiguous)
        compare("F order", sent.flags.f_contiguous, received.flags.f_contiguous)
    if shared and sent.size:
        steps = [i for i, n in enumerate(sent.shape) if n > 1]
        compare("strides", [sent.strides[i] for i in steps], [received.strides[i] for i in steps])
    if not found and not same_values(sent, received):
        found.append(f"values: {sent!r} left, {received!r} arrived")
    return found
