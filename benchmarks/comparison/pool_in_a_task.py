"""A task makes a pool of the library of its own."""

from __future__ import annotations

import sys

from benchmarks.comparison.event import PATIENCE, main
from benchmarks.comparison.libraries import LIBRARIES, Library


def square(number: int) -> int:
    return number * number


def nested(name: str) -> int:
    pool = LIBRARIES[name]()
    result: int = pool.submit(square, 3)(PATIENCE)
    pool.close()
    return result


def event(library: type[Library]) -> str:
    pool = library(**library.outside)
    try:
        return "works" if pool.submit(nested, sys.argv[1])(6 * PATIENCE) == 9 else "a wrong result"
    except Exception as error:
        return type(error).__name__


if __name__ == "__main__":
    main(event)
