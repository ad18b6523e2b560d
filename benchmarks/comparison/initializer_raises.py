"""The initializer of the workers raises."""

from __future__ import annotations

from benchmarks.comparison.event import PATIENCE, main, square
from benchmarks.comparison.libraries import Library


def fail() -> None:
    raise LookupError("no such device")


def event(library: type[Library]) -> str:
    try:
        pool = library(fail)
        pool.submit(square, 2)(PATIENCE)
    except ModuleNotFoundError:
        raise
    except BaseException as error:
        if "Timeout" in type(error).__name__:
            return "never answered"
        told, seen = "", error
        while seen is not None and not told:
            told = "tells why" if "no such device" in str(seen) else ""
            seen = seen.__cause__
        return f"{type(error).__name__}, " + (told or "without the reason")
    return "the task runs without it"


if __name__ == "__main__":
    main(event)
