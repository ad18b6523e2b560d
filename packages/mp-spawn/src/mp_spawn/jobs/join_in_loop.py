"""Wait for the ranks of a job in an event loop: the loop waits for their descriptors.

A thread of the loop's executor handles each event, since the end of a job takes time: `join` gives the other ranks
their grace period, and ends those that ignore it.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable

from mp_core.channels.coroutines import wait_readable

#: Seconds that one call of `join` takes at most while all ranks run, or another thread joins them.
CALL_S = 0.05


async def join(
    join: Callable[[float | None, float | None], bool],
    watch: Callable[[selectors.BaseSelector], None],
    timeout: float | None,
    grace_period: float | None,
) -> bool:
    """Wait as *join* does, whose events *watch* lets a selector wait for; a cancelled task leaves the ranks running."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        call = functools.partial(join, CALL_S if left is None else min(CALL_S, left), grace_period)
        if await loop.run_in_executor(None, call):
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        # A selector has a descriptor, which is readable while one of its descriptors is.
        with selectors.DefaultSelector() as events:
            watch(events)
            if events.get_map():
                fd: int = events.fileno()
                await wait_readable(fd, None if deadline is None else deadline - time.monotonic())
