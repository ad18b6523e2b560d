"""`rng`: the random numbers of a task or rank, the same wherever and however often it runs.

Forked workers have copies of the generators of their parent, and draw the same numbers. A generator for each worker is
no remedy: which worker runs which task changes from run to run. So there is one for each *task*, made from the seed of
the pool, the number of the call and the place of the item in it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.random import Generator

    Seed = int | Iterable[int] | None

_stream: tuple[int, Any, tuple[int, ...]] | None = None  # the pid, the seed, the key
_made: Generator | None = None  # of that, if it was asked for


def set_stream(seed: Any, *key: int) -> None:
    """Have `rng` give the generator of *seed* and *key* from now on."""
    global _stream, _made
    _stream, _made = (os.getpid(), seed, key), None


def rng() -> Generator:
    """
    Return the random generator of this task, or of this rank.

    Two runs of a program with the same *seed* draw the same numbers in the same task, whatever worker runs it, with
    whatever chunk size, number of workers and retries: it is made from
    ``numpy.random.SeedSequence(seed, spawn_key=(call, index))``, where *call* counts the calls of the pool (a `map` is
    one, and so is each ``submit``) and *index* is the place of the item, both from 0. In a rank the key is its number.

    Returns
    -------
    numpy.random.Generator
        One for each task: a second call in the same task returns the same object.

    Raises
    ------
    RuntimeError
        Outside of a task, or if the pool has no *seed*.

    Examples
    --------
    >>> def draw(item):
    ...     return mp.rng().random()
    >>> with mp.Pool(2, seed=7) as pool, mp.Pool(3, seed=7) as other:
    ...     pool.map(draw, range(5)) == other.map(draw, range(5), chunksize=2)
    True
    """
    global _made
    if _stream is None or _stream[0] != os.getpid():
        raise RuntimeError(
            "rng() is for tasks of a pool or an executor, and for ranks, that were given seed=; "
            "elsewhere use numpy.random.default_rng()"
        )
    if _made is None:
        from numpy.random import SeedSequence, default_rng

        _, seed, key = _stream
        _made = default_rng(SeedSequence(seed, spawn_key=key))
    return _made


class ForEach:
    """A function, called with the items of a chunk that begins at *index*, each with random numbers of its own."""

    def __init__(self, function: Callable[..., Any], seed: Any, call: int, index: int) -> None:
        self.func, self._seed, self._call, self._index = function, seed, call, index

    def __call__(self, *args: Any) -> Any:
        set_stream(self._seed, self._call, self._index)
        self._index += 1
        return self.func(*args)


def checked_seed(seed: Seed) -> Any:
    """
    Return *seed* as an integer or a tuple of them; raise `TypeError` or `ValueError` for what is none.

    >>> checked_seed(-1)
    Traceback (most recent call last):
    ValueError: seed must be 0 or more, not -1
    """
    if seed is None:
        return None
    numbers = [operator.index(each) for each in (seed if isinstance(seed, Iterable) else (seed,))]
    for number in numbers:
        if number < 0:
            raise ValueError(f"seed must be 0 or more, not {number}")
    return tuple(numbers) if isinstance(seed, Iterable) else numbers[0]
