"""A worker is killed while it runs a task, as the out-of-memory killer does."""

from __future__ import annotations

import os
import signal

from benchmarks.comparison.event import after, main, square, what_became_of
from benchmarks.comparison.libraries import Library


def square_or_die(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(number)


def event(library: type[Library]) -> str:
    pool = library()
    told = what_became_of([pool.submit(square_or_die, number) for number in range(20)])
    return f"{told}; {after(pool)}"


if __name__ == "__main__":
    main(event)
