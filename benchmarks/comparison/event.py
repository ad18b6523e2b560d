"""Common parts of the events: tasks, and words for their outcomes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.comparison.libraries import LIBRARIES, Library

__all__ = ["PATIENCE", "after", "main", "square", "what_became_of"]

PATIENCE = 5.0  # seconds for all tasks, each of which takes some milliseconds


def square(number: int) -> int:
    """Take ten milliseconds."""
    time.sleep(0.01)
    return number * number


def what_became_of(waits: Sequence[Callable[[float], Any]]) -> str:
    """Return how many tasks are done, which errors the others have, and how many have none."""
    found: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE
    for wait in waits:
        left = max(0.05, deadline - time.monotonic())
        begun = time.monotonic()
        try:
            wait(left)
            found["done"] += 1
        except BaseException as error:
            waited = time.monotonic() - begun > left * 0.9 and "Timeout" in type(error).__name__
            found["never answered" if waited else type(error).__name__] += 1
    parts = [f"{found.pop('done', 0)} of {len(waits)} done"]
    return ", ".join(parts + [f"{count} {name}" for name, count in found.items()])


def after(pool: Library) -> str:
    """Return whether the pool can be used from now on."""
    try:
        waits = [pool.submit(square, number) for number in range(4)]
    except BaseException as error:
        return f"then broken ({type(error).__name__})"
    told = what_became_of(waits)
    return "goes on" if told == "4 of 4 done" else f"then {told}"


def main(event: Callable[[type[Library]], str]) -> None:
    """Run *event* in the library that the command line names, and print what happened."""

    def run() -> None:
        try:
            print("outcome:", event(LIBRARIES[sys.argv[1]]))
        except TimeoutError:
            print("outcome: never answered")
        except ModuleNotFoundError as error:
            print("missing:", error.name)
        except NotImplementedError:
            print("outcome: no such option")
        sys.stdout.flush()

    # Several of these pools never end after a death: end without them.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    os._exit(0)
