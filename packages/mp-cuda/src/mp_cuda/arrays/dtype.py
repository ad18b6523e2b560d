"""Element types without NumPy: `<f4` in the CUDA array interface is (2, 32, 1) in DLPack."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from mp_cuda.driver.functions import set_hooks

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
OPAQUE = 3  # DLPack's code for types it does not define
_NAMED = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}
_NAMES = {pair: name for name, pair in _NAMED.items()}
_LONG = {"float": "f", "int": "i", "uint": "u", "complex": "c"}
_SHORT = re.compile("[iufcb][1-9][0-9]*")


class DType(NamedTuple):
    """
    An element type, in the terms of the CUDA array interface and of DLPack.

    Attributes
    ----------
    typestr : str or None
        As in the array interface, ``"<f4"``; None if it has no name for the type.
    code, bits, lanes : int
        DLPack's three numbers.
    descr : list or None
        The fields of a structured type, as in the array interface.

    Examples
    --------
    >>> mp_cuda.DType("<f4", 2, 32).name, mp_cuda.DType(None, 4, 16).name
    ('float32', 'bfloat16')
    """

    typestr: str | None
    code: int
    bits: int
    lanes: int = 1
    descr: Any = None

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def name(self) -> str:
        """The name of the type, such as ``float32``."""
        if self.typestr is None:
            return _NAMES.get((self.code, self.bits), f"dlpack({self.code}, {self.bits}, {self.lanes})")
        kind = self.typestr[1]
        if kind == "b":
            return "bool"
        names = {letter: name for name, letter in _LONG.items()}
        return f"{names[kind]}{self.bits}" if kind in names else self.typestr

    def __str__(self) -> str:
        return self.name


def dtype_of(what: Any, descr: Any = None) -> DType:
    """
    Convert *what* to a `DType`: a typestr (`"<f4"`, `"f4"`), a name (`"float32"`, `"bfloat16"`), an object with the
    attribute `str` such as NumPy's dtypes, or DLPack's triple. `TypeError` for anything else.

    >>> dtype_of("<i8").name, dtype_of("f4").name
    ('int64', 'float32')
    """
    if isinstance(what, DType):
        return what
    given = what
    if not isinstance(what, str | tuple) and isinstance(getattr(what, "str", None), str):
        given, descr = what.str, what.descr if getattr(what, "fields", None) else None
    found = _named(given) if isinstance(given, str | tuple) else None
    if found is None:
        raise TypeError(
            f"{what!r} is not an element type; give a typestr like '<f4', a name like 'float32' or a NumPy dtype"
        )
    return found if descr is None else found._replace(descr=descr)


@functools.lru_cache(64)
def _named(what: str | tuple[int, int, int]) -> DType | None:
    """Return the same object for the same name: C knows it then."""
    if isinstance(what, tuple):
        code, bits, lanes = what
        known = lanes == 1 and code in _KINDS and bits % 8 == 0
        kind = _KINDS.get(code, "")
        typestr = f"{'|' if bits == 8 else '<'}{kind}{bits // 8}" if known else None
        return DType(typestr, code, bits, lanes)
    if what in _NAMED:
        return DType(None, *_NAMED[what])
    if what == "bool":
        what = "|b1"
    elif what.rstrip("0123456789") in _LONG and what[-1].isdigit():
        bits = int(what.lstrip("abcdefghijklmnopqrstuvwxyz"))
        what = f"{'|' if bits == 8 else '<'}{_LONG[what.rstrip('0123456789')]}{bits // 8}"
    elif _SHORT.fullmatch(what):
        what = f"{'|' if what[1:] == '1' else '<'}{what}"
    if len(what) < 3 or what[0] not in "<>|=" or not what[2:].isdigit():
        return None
    size = int(what[2:]) * (4 if what[1] == "U" else 1)
    return DType(what, _CODES.get(what[1], OPAQUE), size * 8)


def plain(dtype: DType) -> tuple[int, int, int] | None:
    """Return DLPack's numbers of *dtype* if they say all, otherwise None."""
    numbers = dtype.code, dtype.bits, dtype.lanes
    return numbers if dtype == dtype_of(numbers) else None


set_hooks(plain_dtype=plain, dtype_of=dtype_of)
