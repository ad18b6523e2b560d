"""`Completion`: the end of a job, for which threads and coroutines wait."""

from __future__ import annotations

import functools
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mp_core.system.waits import Gate

# Seconds, which the system counts in milliseconds with 31 bits.
LONGEST = 3600.0


class Completion(Gate):
    """
    An event that is set once.

    >>> over = Completion()
    >>> over.set()
    >>> asyncio.run(over.wait_in_loop(None))
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._calls: set[Callable[[], Any]] = set()

    def set(self) -> None:
        """Wake all that wait."""
        super().set()
        with self._guard:
            for call in self._calls:
                with suppress(RuntimeError):  # the loop was closed
                    call()

    def wait_beside(self, fd: int, timeout: float | None) -> bool:
        """Wait as `wait` does, an hour at most, and no longer than until the descriptor *fd* is readable."""
        ours, theirs = os.pipe()
        call = functools.partial(os.write, theirs, b"!")
        poll = select.poll()  # unlike select, it takes any descriptor
        for each in (fd, ours):
            poll.register(each, select.POLLIN)
        with self._guard:
            self._calls.add(call)
        try:
            if not self.is_set():
                poll.poll(None if timeout is None else 1000 * min(timeout, LONGEST))
            return self.is_set()
        finally:
            with self._guard:
                self._calls.discard(call)
            os.close(ours)
            os.close(theirs)

    async def wait_in_loop(self, timeout: float | None) -> bool:
        """Wait as `wait` does, while the event loop goes on."""
        import asyncio  # few programs need it

        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def call() -> None:
            loop.call_soon_threadsafe(over.set)

        with self._guard:
            self._calls.add(call)
        try:
            if not self.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), timeout)
            return self.is_set()
        finally:
            with self._guard:
                self._calls.discard(call)
