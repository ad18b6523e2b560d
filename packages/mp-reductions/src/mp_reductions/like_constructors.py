"""The `*_like` constructors of shared arrays; `shared` exports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mp_reductions.sharing import shared_like

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]
AnyOrder = Literal["K", "A", "C", "F"]
Array = np.ndarray[Any, Any]
#: The type of an element, and what gives it.
S = TypeVar("S", bound=np.generic)
DTypeOf = type[S] | np.dtype[S]
F = TypeVar("F")


def typed_as(overloaded: F) -> Callable[[Any], F]:
    """Give a function the overloads of another one, for type checkers."""
    return lambda function: function


@overload
def empty_like(
    prototype: Any,
    dtype: DTypeOf[S],
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def empty_like(
    prototype: NDArray[S],
    dtype: None = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def empty_like(
    prototype: Any,
    dtype: DTypeLike = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> Array: ...
def empty_like(
    prototype: Any,
    dtype: Any = None,
    order: AnyOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    Return a new, uninitialised shared array with the shape, type and memory order of another.

    Parameters
    ----------
    prototype : array_like
        The other array.
    dtype : data type, default that of *prototype*
        The type of an element; without Python objects.
    order : {"K", "A", "C", "F"}, default "K"
        The memory order; "K" is that of *prototype*.
    subok : bool
        For NumPy's signature; the result is never a subclass.
    shape : int or sequence of int, default that of *prototype*
        Another shape.
    device : {None, "cpu"}
        For the array API; no other value is possible.

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


@overload
def zeros_like(
    a: Any,
    dtype: DTypeOf[S],
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def zeros_like(
    a: NDArray[S],
    dtype: None = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def zeros_like(
    a: Any,
    dtype: DTypeLike = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> Array: ...
def zeros_like(
    a: Any,
    dtype: Any = None,
    order: AnyOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    Return a new shared array of zeros with the shape, type and memory order of another.

    Parameters
    ----------
    a : array_like
        The other array.
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


@typed_as(zeros_like)
def ones_like(
    a: Any,
    dtype: Any = None,
    order: AnyOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    Return a new shared array of ones with the shape, type and memory order of another.

    Parameters
    ----------
    a : array_like
        The other array.
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


@overload
def full_like(
    a: Any,
    fill_value: Any,
    dtype: DTypeOf[S],
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def full_like(
    a: NDArray[S],
    fill_value: Any,
    dtype: None = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> NDArray[S]: ...
@overload
def full_like(
    a: Any,
    fill_value: Any,
    dtype: DTypeLike = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    shape: Shape | None = ...,
    *,
    device: str | None = ...,
) -> Array: ...
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: AnyOrder = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    Return a new shared array filled with one value, with the shape, type and memory order of another.

    Parameters
    ----------
    a : array_like
        The other array.
    fill_value : scalar or array_like
        The value of every element; it is broadcast.
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
    """Fill *a* with *value*, and return it."""
    np.copyto(a, value, casting="unsafe")
    return a


def check_device(device: str | None) -> None:
    """Raise for any device but the CPU; the array API allows others, shared memory does not."""
    if device not in (None, "cpu"):
        raise ValueError(f"shared arrays live on the device 'cpu', not {device!r}")
