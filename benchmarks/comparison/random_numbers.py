"""Eight tasks on two workers draw a random number each, in two runs with a seed."""

from __future__ import annotations

import numpy as np

from benchmarks.comparison.event import PATIENCE, main
from benchmarks.comparison.libraries import Library


def draw(item: int) -> float:
    import time

    number = float(np.random.random())
    time.sleep(0.05)
    return number


def event(library: type[Library]) -> str:
    np.random.seed(7)
    runs = []
    for _ in range(2):
        pool = library(seed=7)
        waits = [pool.submit(pool.draw or draw, number) for number in range(8)]
        runs.append([wait(6 * PATIENCE) for wait in waits])
        pool.close()
    return f"{len(set(runs[0]))} of 8 differ; a second run {'draws the same' if runs[0] == runs[1] else 'draws others'}"


if __name__ == "__main__":
    main(event)
