"""`Pool.map_blocks`: cut an array into blocks for the workers, and put their results together."""

from __future__ import annotations

from collections.abc import Callable

from mp_pool.tasks.task_options import check_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What shares an array, and what makes one; mp_all, which knows shared memory, sets them.
_share: Callable[[Any], Any] | None = None
_empty: Callable[..., Any] | None = None


def use_shared_memory(share: Callable[[Any], Any], empty: Callable[..., Any]) -> None:
    """Have arrays shared by *share*, and results put together in arrays that *empty* makes."""
    global _share, _empty
    _share, _empty = share, empty


def cut(array: Any, blocks: int, axis: int) -> list[Any]:
    """
    Return *array* in shared memory, cut into at most so many blocks.

    >>> [len(block) for block in cut(np.arange(5), 2, 0)]
    [3, 2]
    """
    import numpy as np

    given = np.asanyarray(array)
    if given.ndim == 0:
        raise ValueError("map_blocks cuts an array along an axis, and this one has no dimension")
    if not -given.ndim <= axis < given.ndim:
        raise ValueError(f"axis {axis} is out of range for an array of {given.ndim} dimensions")
    check_numbers(blocks=blocks)
    length = given.shape[axis]
    shared = given if _share is None else _share(given)
    return np.array_split(shared, max(1, min(blocks, length)), axis)


def joined(results: list[Any], axis: int) -> Any:
    """
    Return arrays of one kind as one, and everything else as it is.

    >>> joined([np.arange(2), np.arange(3)], 0)
    array([0, 1, 0, 1, 2])
    """
    import numpy as np

    first = results[0]
    if not isinstance(first, np.ndarray) or not -first.ndim <= axis < first.ndim:
        return results
    rest = _without(first.shape, axis)
    for each in results:
        if type(each) is not type(first) or each.dtype != first.dtype or _without(each.shape, axis) != rest:
            return results
    if isinstance(first, np.ma.MaskedArray):
        masked: Any = np.ma  # it has no types
        return masked.concatenate(results, axis)
    if _empty is None or type(first) is not np.ndarray or first.dtype.hasobject:
        return np.concatenate(results, axis)
    shape = list(first.shape)
    shape[axis] = sum(each.shape[axis] for each in results)
    return np.concatenate(results, axis, out=_empty(tuple(shape), first.dtype))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return *shape* without one of its axes."""
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]
