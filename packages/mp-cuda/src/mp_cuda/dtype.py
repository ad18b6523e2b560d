"""Types of elements without NumPy: what the CUDA array interface calls `<f4` and DLPack (2, 32, 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["DType", "dtype_of"]

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
OPAQUE = 3  # DLPack's code for bytes that only the two ends understand
_NAMED = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}
_NAMES = {pair: name for name, pair in _NAMED.items()}
_LONG = {"float": "f", "int": "i", "uint": "u", "complex": "c"}


class DType(NamedTuple):
    """
    An element type, as the CUDA array interface and as DLPack call it.

    Attributes
    ----------
    typestr : str or None
        As in the array interface, ``"<f4"``; None where it has no word for it.
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
        """Bytes of an element."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def name(self) -> str:
        """``float32`` and its like."""
        if self.typestr is None:
            return _NAMES.get((self.code, self.bits), f"dlpack({self.code}, {self.bits}, {self.lanes})")
        kind = self.typestr[1]
        if kind == "b":
            return "bool"
        words = {letter: word for word, letter in _LONG.items()}
        return f"{words[kind]}{self.bits}" if kind in words else self.typestr

    def __str__(self) -> str:
        return self.name


def dtype_of(what: Any, descr: Any = None) -> DType:
    """
    *what* as a `DType`: a typestr (`"<f4"`), a name (`"float32"`, `"bfloat16"`), anything with the attribute `str` as
    NumPy's dtypes have, or DLPack's triple. `TypeError` for anything else.

    >>> dtype_of("<i8").name
    'int64'
    """
    if isinstance(what, DType):
        return what
    if isinstance(what, tuple):
        code, bits, lanes = what
        plain = lanes == 1 and code in _KINDS and bits % 8 == 0
        kind = _KINDS.get(code, "")
        typestr = f"{'|' if bits == 8 else '<'}{kind}{bits // 8}" if plain else None
        return DType(typestr, code, bits, lanes)
    if isinstance(what, str):
        if what in _NAMED:
            return DType(None, *_NAMED[what])
        if what == "bool":
            what = "|b1"
        elif what.rstrip("0123456789") in _LONG and what[-1].isdigit():
            bits = int(what.lstrip("abcdefghijklmnopqrstuvwxyz"))
            what = f"{'|' if bits == 8 else '<'}{_LONG[what.rstrip('0123456789')]}{bits // 8}"
        if len(what) >= 3 and what[0] in "<>|=" and what[2:].isdigit():
            size = int(what[2:]) * (4 if what[1] == "U" else 1)
            return DType(what, _CODES.get(what[1], OPAQUE), size * 8, 1, descr)
    elif isinstance(getattr(what, "str", None), str):
        fields = getattr(what, "fields", None)
        return dtype_of(what.str, what.descr if fields else None)
    raise TypeError(f"{what!r} is no element type; give a typestr like '<f4', a name like 'float32' or a NumPy dtype")
