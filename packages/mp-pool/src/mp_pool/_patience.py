"""`Patience`: how a worker waits for its next task: first in a spin, if that has paid lately, then asleep.

Note [When a worker spins]
--------------------------
A program that submits a task, waits for its result and submits the next one leaves the worker without a task for as
long as it takes to wake the pool's thread and then the program's: some 80 microseconds. To put a processor to sleep
meanwhile, and to wake it, makes the round trip twice as long.

    worker    answers | spins ................................ | next task
    pool              | wakes, sets the future
    program                                    | wakes, submits |

So a worker spins if no other worker had a task beside its last one: several tasks at once, or more workers than
processors, need each processor. A spin is up to three times `MP_SPIN_US` long, the ceiling of a channel's reader, since
two threads wake in turn. Success doubles the next spin up to that, failure makes it a quarter. After three failures the
next three waits that spin are 2 waits away, then 6, and so on up to 64. So a worker whose tasks come seldom, or whose
machine is busy, sleeps at once.

Between two looks the worker gives its processor away (`sched_yield`), because the kernel often wakes the program's
threads on the worker's processor. If none of them is runnable there, that takes half a microsecond. A spin in which the
worker lost its processor for longer than the program needs has failed: other processes need it. With one processor, or
a control group that grants the time of fewer than two, nothing spins: the worker would run between any two steps of
the program's threads, which takes as long as to wake it once.
"""

from __future__ import annotations

import os
import select
import time

from mp_core.control_groups import processors

__all__ = ["Patience"]

CEILING = 50.0  # microseconds; MP_SPIN_US changes it
WAKE_UPS = 3
LEAST = 5e-6  # seconds
PREEMPTED = 200e-6  # seconds: one look never takes so long, unless another program ran
MOST_SKIPPED = 64  # waits


_give_way = getattr(os, "sched_yield", lambda: None)


class Patience:
    """Waits until *fd* is readable, with a poll, which takes descriptors from 1024 on."""

    def __init__(self, fd: int) -> None:
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._ceiling: float | None = None  # read when it is needed first
        self._spin = 0.0
        self._skipped = self._to_skip = 0  # waits that do not spin before the next one that does

    def wait(self, may_spin: bool) -> None:
        """
        Return when the descriptor is readable, or its other end is closed.
        """
        if may_spin:
            if self._ceiling is None:
                self._spin = self._ceiling = ceiling()
            if self._to_skip > 0:
                self._to_skip -= 1
            elif self._ceiling and self._spins(self._ceiling):
                return
        self._poll.poll()

    def _spins(self, most: float) -> bool:
        look, clock, give_way = self._poll.poll, time.perf_counter, _give_way
        last = clock()
        end = last + self._spin
        while last < end:
            if look(0):
                self._spin = min(2 * self._spin, most)
                self._skipped = 0
                return True
            give_way()
            now = clock()
            if now - last > PREEMPTED:
                break
            last = now
        self._spin /= 4
        if self._spin < LEAST:
            self._skipped = self._to_skip = min(2 * self._skipped + 2, MOST_SKIPPED)
            self._spin = most
        return False


def ceiling() -> float:
    """
    Return the longest spin in seconds; 0 if nothing may spin.
    """
    if processors() < 2:
        return 0.0
    try:
        given = float(os.environ.get("MP_SPIN_US") or CEILING)
    except ValueError:
        given = CEILING
    return WAKE_UPS * (given if 0 <= given <= 1e6 else CEILING) * 1e-6
