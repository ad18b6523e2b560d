"""Arrays made in shared memory after the likeness of others; see `shared`, where they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from mp_reductions.sharing import shared_like

__all__ = ["Array", "Shape", "check_device", "empty_like", "filled", "full_like", "ones_like", "zeros_like"]

Shape = SupportsIndex | Sequence[SupportsIndex]
Array = np.ndarray[Any, Any]


def empty_like(
    prototype: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of another's shape, type and memory order, its entries not set.

    Parameters
    ----------
    prototype : array_like
        The other.
    dtype : data type, default that of *prototype*
        What an element is; without Python objects.
    order : {"K", "A", "C", "F"}, default "K"
        How it lies in memory; "K" is as *prototype* does.
    subok : bool
        For NumPy's signature; the result is never a subclass.
    shape : int or sequence of int, default that of *prototype*
        Another shape.
    device : {None, "cpu"}
        For the array API; nothing else is possible.

    Returns
    -------
    numpy.ndarray
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `empty`.

    Examples
    --------
    >>> mp.shared.empty_like(np.ones((2, 3), order="F")).flags.f_contiguous
    True
    """
    check_device(device)
    return shared_like(np.empty_like(prototype, dtype, order, False, shape))


def zeros_like(
    a: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of zeros with another's shape, type and memory order.

    Parameters
    ----------
    a : array_like
        The other.
    dtype, order, subok, shape, device
        As for `empty_like`.

    Returns
    -------
    numpy.ndarray
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `empty`.

    Examples
    --------
    >>> mp.shared.zeros_like(np.ones(2)).tolist()
    [0.0, 0.0]
    """
    return filled(empty_like(a, dtype, order, subok, shape, device=device), 0)


def ones_like(
    a: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of ones with another's shape, type and memory order.

    Parameters
    ----------
    a : array_like
        The other.
    dtype, order, subok, shape, device
        As for `empty_like`.

    Returns
    -------
    numpy.ndarray
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `empty`.

    Examples
    --------
    >>> mp.shared.ones_like(np.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return filled(empty_like(a, dtype, order, subok, shape, device=device), 1)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array full of one value, with another's shape, type and memory order.

    Parameters
    ----------
    a : array_like
        The other.
    fill_value : scalar or array_like
        What every entry is; it is broadcast.
    dtype, order, subok, shape, device
        As for `empty_like`.

    Returns
    -------
    numpy.ndarray
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `empty`.

    Examples
    --------
    >>> mp.shared.full_like(np.zeros(2, int), 7).tolist()
    [7, 7]
    """
    return filled(empty_like(a, dtype, order, subok, shape, device=device), fill_value)


def filled(a: Array, value: Any) -> Array:
    """*a*, after it was filled with *value*."""
    np.copyto(a, value, casting="unsafe")
    return a


def check_device(device: str | None) -> None:
    """Refuse what the array API allows and shared memory is not: another device than the processor."""
    if device not in (None, "cpu"):
        raise ValueError(f"shared arrays live on the device 'cpu', not {device!r}")
