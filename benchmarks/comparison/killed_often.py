"""A worker is killed each 200 ms, during 300 tasks of 10 ms."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.comparison.event import main, square, what_became_of
from benchmarks.comparison.libraries import Library

COUNT, EACH = 300, 0.2


def noted(folder: str, number: int) -> int:
    Path(folder, str(os.getpid())).touch()
    return square(number)


def kill(folder: str, over: threading.Event) -> None:
    """Kill the worker that began a task last."""
    while not over.wait(EACH):
        begun = sorted(os.scandir(folder), key=lambda each: each.stat().st_mtime)
        if begun:
            os.unlink(begun[-1])
            try:
                os.kill(int(begun[-1].name), signal.SIGKILL)
            except ProcessLookupError:
                pass


def run(library: type[Library], kills: bool) -> tuple[str, float]:
    pool, over = library(), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        what_became_of([pool.submit(noted, folder, number) for number in range(8)])
        killer = threading.Thread(target=kill, args=(folder, over))
        begun = time.monotonic()
        if kills:
            killer.start()
        try:
            told = what_became_of([pool.submit(noted, folder, number) for number in range(COUNT)])
        except Exception as error:
            told = f"broken ({type(error).__name__})"
        seconds = time.monotonic() - begun
        over.set()
        if kills:
            killer.join()
    return told, seconds


def event(library: type[Library]) -> str:
    _, calm = run(library, False)
    told, seconds = run(library, True)
    return f"{told}; {seconds / calm:.1f} times the time without kills"


if __name__ == "__main__":
    main(event)
