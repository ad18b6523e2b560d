"""`cpus_for`: which processors each rank of a launcher, or each worker of a pool, may use."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Cpus = Literal["spread"] | Sequence[int | Iterable[int]] | None


def cpus_for(cpu_affinity: Any, count: int, what: str) -> Sequence[frozenset[int]] | None:
    """
    Return the processors of each of *count* processes, which are ranks or workers, as *what* says.

    >>> cpus_for([0, {1, 2}], 2, "ranks")
    [frozenset({0}), frozenset({1, 2})]
    """
    if cpu_affinity is None:
        return None
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("cpu_affinity is not supported on this system; leave it at None")
    if cpu_affinity == "spread":
        # Neighbours share caches: each rank gets a run of processors, as even as the numbers allow.
        mine = sorted(os.sched_getaffinity(0))
        if count >= len(mine):
            return [frozenset({mine[index * len(mine) // count]}) for index in range(count)]
        cuts = [index * len(mine) // count for index in range(count + 1)]
        return [frozenset(mine[a:b]) for a, b in itertools.pairwise(cuts)]
    if isinstance(cpu_affinity, str) or not isinstance(cpu_affinity, Sequence) or len(cpu_affinity) != count:
        raise ValueError(
            f"cpu_affinity={_short(cpu_affinity)} is not for {count} {what}; "
            f"give 'spread', or a sequence with a processor, or a set of them, for each of the {what}"
        )
    sets = [frozenset(each) if isinstance(each, Iterable) else frozenset({each}) for each in cpu_affinity]
    _check(sets)
    return sets


def _check(sets: Iterable[frozenset[int]]) -> None:
    """Raise `ValueError` for a set without a processor that this process could have, which only the kernel knows."""
    mine = os.sched_getaffinity(0)
    for each in {*sets}:
        if not each or not each <= mine:
            try:
                os.sched_setaffinity(0, each)
            except (OSError, OverflowError, ValueError):
                what = f"names no processor in {sorted(each)} that this process may use"
                raise ValueError(f"cpu_affinity {what}; it may use {sorted(mine)}") from None
            finally:
                os.sched_setaffinity(0, mine)


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else text[:57] + "..."
