"""The substitute for the compiled module on a platform without shared memory.

It has the functions of `_native.pyi` that are called there. Each array takes the path in Python (`array.py`), where its
allocation fails and its bytes go into the message. The shared allocator is a scope without effect: NumPy allocates in
private memory, as it does when shared memory is exhausted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "Table",
    "block_at",
    "get_handler",
    "get_inline_limit",
    "has_room",
    "reduce_array",
    "replace_default_handler",
    "set_handler",
    "set_inline_limit",
    "setup",
    "setup_table",
    "shared_handler",
    "swap_memory",
]

#: No message has a table of arrays.
Table = None

_reduce: Callable[[Any], Any]
_inline_limit = 0


def setup(dtypes: Any, reduce_ndarray: Callable[[Any], Any], on_large_copy: Any, large_nbytes: int) -> None:
    """Set the function that reduces every array."""
    global _reduce
    _reduce = reduce_ndarray


def setup_table(on_exhaustion: Any) -> None:
    """Do nothing: no message has a table of arrays."""


def reduce_array(a: Any) -> Any:
    """Reduce an array in Python."""
    return _reduce(a)


def set_inline_limit(nbytes: int) -> None:
    """Set the size up to which arrays travel in the message without a warning."""
    global _inline_limit
    _inline_limit = nbytes


def get_inline_limit() -> int:
    """Return that size."""
    return _inline_limit


def has_room(nbytes: int) -> bool:
    """Return whether an array of *nbytes* travels without a warning; here every array travels in the message."""
    return nbytes <= _inline_limit


def get_handler() -> None:
    """Return None: NumPy keeps its own memory handler."""


def set_handler(handler: None) -> None:
    """Do nothing."""


def shared_handler() -> None:
    """Return None: no handler allocates in shared memory."""


def replace_default_handler(on: bool) -> None:
    """Do nothing."""


def block_at(a: Any) -> None:
    """Return None: no array is in a block."""


def swap_memory(a: Any, b: Any) -> None:
    """Raise a RuntimeError: no array here has shared memory to exchange."""
    raise RuntimeError("no array is in shared memory on this platform")
