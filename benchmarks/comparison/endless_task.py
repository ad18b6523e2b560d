"""A task never ends, and is to be ended after a second."""

from __future__ import annotations

import time

from benchmarks.comparison.event import after, main, what_became_of
from benchmarks.comparison.libraries import Library


def sleep() -> None:
    time.sleep(3600)


def event(library: type[Library]) -> str:
    pool = library()
    told = what_became_of([pool.submit_limited(1.0, sleep)])
    return f"{told.removeprefix('0 of 1 done, 1 ')}; {after(pool)}"


if __name__ == "__main__":
    main(event)
