"""An idle worker is killed."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.comparison.event import PATIENCE, after, main
from benchmarks.comparison.libraries import Library


def own_pid(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def event(library: type[Library]) -> str:
    pool = library()
    pids = sorted({wait(PATIENCE) for wait in [pool.submit(own_pid, number) for number in range(8)]})
    for pid in pids:
        time.sleep(0.3)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # some libraries end all workers when one has died
    return after(pool)


if __name__ == "__main__":
    main(event)
