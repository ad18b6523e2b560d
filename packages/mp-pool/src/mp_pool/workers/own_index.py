"""The number of the worker that this process is, for a device, a port or a file of its own."""

from __future__ import annotations

import os

_worker: tuple[int, int] | None = None  # the pid and the number: a child of a worker is none


def worker_index() -> int | None:
    """
    Return the number of this worker in its pool or executor.

    A worker that takes the place of another one has its number, so two workers that run tasks at one time never have
    the same.

    Returns
    -------
    int or None
        0 to n - 1 in one of n workers; None in any other process.

    Examples
    --------
    >>> with mp.Pool(2) as pool:
    ...     pool.apply(mp.worker_index) in (0, 1), mp.worker_index()
    (True, None)
    """
    return _worker[1] if _worker is not None and _worker[0] == os.getpid() else None


def set_worker_index(index: int) -> None:
    global _worker
    _worker = os.getpid(), index
