"""A running task is cancelled by the program."""

from __future__ import annotations

import time

from benchmarks.comparison.event import after, main, square, what_became_of
from benchmarks.comparison.libraries import Library


def sleep() -> None:
    time.sleep(3600)


def event(library: type[Library]) -> str:
    pool = library()
    pool.submit(square, 1)(30.0)
    cancel, wait = pool.submit_cancellable(sleep)
    time.sleep(1)
    cancel()
    told = what_became_of([wait]).removeprefix("0 of 1 done, 1 ")
    return f"{told}; {after(pool)}"


if __name__ == "__main__":
    main(event)
