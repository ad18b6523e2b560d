"""What the command itself writes to standard error: by a thread, so that a reader that does not read stops nothing.

Note [A reader that does not read]
----------------------------------
A pipe or terminal may take nothing for as long as its reader likes: a pager, a stopped terminal, a program that waits
for something else. Then a write waits. The ranks' own lines may wait; their supervision may not:

    thread          writes                                 while nobody reads
    output          lines of ranks (destinations.py)       the ranks wait as well, before their full pipes
    messages        `tell`, records of the launcher        messages wait in memory
    the main one    nothing                                waits a second for a message, so that it stays in its
                                                           place among other lines, then goes on

At the end the main thread waits until all is written. A signal that ends the job, or the end of its time, limits that
to some seconds: the rest is lost then, and the exit code is not 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

from mp_spawn.output.destinations import has_written, write_to

PATIENCE_S = 1.0


class Messages:
    """Texts for standard error, which a thread writes in order; the thread ends with the last one."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_late = self._is_given_up = False

    def put(self, text: str) -> None:
        """Write *text*; return once it is written, or after a second."""
        with self._lock:
            self._texts.append(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mp-spawn messages", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the system has no thread left
                    self._thread = None
            thread = self._thread
        if thread is None:
            self._run()
            return
        thread.join(0.0 if self._is_late else PATIENCE_S)
        self._is_late = thread.is_alive()

    def begin(self) -> None:
        """Wait for readers again, after another run of the command in this process."""
        self._is_given_up = self._is_late = False

    def finish(self, is_given_up: Callable[[], bool] = bool) -> bool:
        """Wait until all is written; return False if nobody reads it and *is_given_up* says so."""
        thread = self._thread
        if thread is not None and not self._is_given_up:
            self._is_given_up = not has_written(thread, is_given_up)
        return not self._is_given_up

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._texts:
                    self._thread = None
                    return
                text = self._texts.popleft()
            # If the terminal or its reader has gone, the exit code has to say it. The stream may be a program's own.
            with contextlib.suppress(Exception):
                write_to(sys.stderr, text.encode(sys.stderr.encoding or "utf-8", "backslashreplace"))


messages = Messages()
os.register_at_fork(after_in_child=lambda: messages.__init__())  # type: ignore[misc]  # the texts are the parent's


def tell(*lines: str) -> None:
    """Write *lines* to standard error, or have them written there when somebody reads it."""
    messages.put("\n".join([*lines, ""]))


class _Telling(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(self.format(record))


@contextlib.contextmanager
def telling_records() -> Iterator[None]:
    """Tell the launcher's warnings while the block runs, unless the program has a handler for them."""
    logger, handler = logging.getLogger("mp_spawn"), _Telling()
    if logger.hasHandlers():
        yield
        return
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
