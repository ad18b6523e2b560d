"""A queue of the library, or of `multiprocessing`, is the argument of a task."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.comparison.event import PATIENCE, main
from benchmarks.comparison.libraries import Library


def put(queue: Any) -> None:
    queue.put("from the task")


def event(library: type[Library]) -> str:
    pool = library()
    queue = pool.queue()
    try:
        pool.submit(put, queue)(PATIENCE)
    except Exception as error:
        return type(error).__name__
    time.sleep(0.1)
    return f"arrives {queue.get(timeout=PATIENCE)}".replace("from the task", "").strip()


if __name__ == "__main__":
    main(event)
