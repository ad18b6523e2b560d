"""A fresh program that measures one start, run by `rows/p22_start.py`: python start_program.py MODULE SCENE [METHOD]

It imports what a user's program imports, and nothing else: no NumPy, no package of the benchmark.
"""

from __future__ import annotations

import importlib
import sys
import time

mp = importlib.import_module(sys.argv[1])


def nothing() -> None:
    """Do nothing."""


def log_through(queue) -> None:
    """Log a hundred records to the parent."""
    import logging.handlers  # here, because each child imports what the main module imports

    logger = logging.getLogger("child")
    logger.addHandler(logging.handlers.QueueHandler(queue))
    logger.setLevel(logging.INFO)
    for number in range(100):
        logger.info("record %d", number)


def per_call(call, count: int) -> float:
    """Return the median of the seconds that *call* takes."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[count // 2]


def process(context) -> float:
    """Start and join a process that does nothing."""

    def start() -> None:
        child = context.Process(target=nothing)
        child.start()
        child.join()

    return per_call(start, 100 if context.get_start_method() == "fork" else 9)


def pool(context) -> float:
    """Start a pool, map a few numbers, and end it."""

    def start() -> None:
        with context.Pool(2) as workers:
            workers.map(abs, range(10))

    return per_call(start, 20 if context.get_start_method() == "fork" else 5)


def ended(context) -> float:
    """End an idle pool: close and join one, terminate and join another; return the sum."""

    def end(how: str) -> float:
        workers = context.Pool(2)
        workers.map(abs, range(10))
        begin = time.perf_counter()
        getattr(workers, how)()
        workers.join()
        return time.perf_counter() - begin

    return sum(sorted(end(how) for _ in range(9))[4] for how in ("close", "terminate"))


def logged(context) -> float:
    """Log from two children through a queue."""
    queue = context.Queue()
    children = [context.Process(target=log_through, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    for _ in range(200):
        queue.get()
    for child in children:
        child.join()
    return resident()


def resident() -> float:
    """Return the bytes of memory that this process has resident."""
    with open("/proc/self/smaps_rollup") as file:
        return next(1024.0 * int(line.split()[1]) for line in file if line.startswith("Rss:"))


def main() -> None:
    """Print the result of the scene."""
    scene, argument = sys.argv[2:4]
    result = {"process": process, "pool": pool, "ended": ended, "logged": logged}[scene](mp.get_context(argument))
    print(result)


if __name__ == "__main__":
    main()
