"""`Progress`: a progress bar over all tasks of a pool, drawn by tqdm."""

from __future__ import annotations

import threading
import warnings

from mp_core.sharing.backend import TryLock
from mp_core.system.errors import user_stack_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Progress:
    """A bar; its total grows with each call of the pool."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._lock: Any = TryLock()  # a signal handler may submit, or raise

    def expect(self, items: int) -> None:
        try:
            self._lock.wait()
            self._bar.total += items
        finally:
            self._lock.release()

    def done(self, items: int) -> None:
        """Advance by *items*, failed ones included."""
        try:
            self._lock.wait()
            bar = self._bar
            bar.update(items)
            if bar.n == bar.total:
                bar.refresh()  # it would show the last ones with the next call
        finally:
            self._lock.release()

    def close(self) -> None:
        """Leave the bar as it is."""
        try:
            self._lock.wait()
            self._bar.close()
        finally:
            self._lock.release()


def progress(wanted: bool) -> Progress | None:
    """
    Return a bar if it is *wanted*, None if it is not; without tqdm, warn and return None.

    >>> progress(False)
    """
    if not wanted:
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        warnings.warn("progress=True shows nothing without tqdm: pip install tqdm", stacklevel=user_stack_level())
        return None

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # no thread of its own

    # tqdm's own lock is one between processes; only this process draws the bar.
    Bar.set_lock(threading.RLock())
    return Progress(Bar(total=0, unit="task"))
