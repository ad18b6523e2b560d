"""Wait for the ranks: for their ends, for their reports, and for signals to this process."""

from __future__ import annotations

import selectors
import time
from types import TracebackType
from typing import Self

from mp_spawn.forwarding import Deferral, Forwarding
from mp_spawn.rank import Rank

__all__ = ["Events"]


class Events:
    """
    What happens to *ranks*, and to this process. A rank that has ended is taken from *sentinels*.
    """

    def __init__(self, ranks: list[Rank], sentinels: dict[int, int], signals: Forwarding | Deferral | None) -> None:
        self._selector = selectors.DefaultSelector()
        self._sentinels = sentinels
        self._signals = signals if signals is not None and signals.fd >= 0 else None
        self.looked_at = 0.0
        for rank in ranks:
            self.add(rank)
        if self._signals is not None:
            self._selector.register(self._signals.fd, selectors.EVENT_READ)

    def add(self, rank: Rank) -> None:
        """Wait for this rank, too, unless it has ended."""
        if not rank.ended:
            self._selector.register(rank.end_fd, selectors.EVENT_READ, (rank, True))
            if rank.inbox_fd >= 0:
                self._selector.register(rank.inbox_fd, selectors.EVENT_READ, (rank, False))

    def forget(self, *fds: int) -> None:
        """Wait for these no longer, if at all."""
        for fd in fds:
            if fd >= 0 and fd in self._selector.get_map():
                self._selector.unregister(fd)

    def drop(self, rank: Rank) -> None:
        """Wait for this rank no longer."""
        self.forget(rank.end_fd, rank.inbox_fd)
        self._sentinels.pop(rank.process.sentinel, None)

    def look(self, timeout: float | None, since: float | None = None) -> list[Rank]:
        """
        Take in what has happened, waiting for *timeout* at most; the ranks to which something has, each once.

        *since* says when somebody looked last, if that was not just now: a death found now is dated back to when the
        rank was last known to be alive.
        """
        events = [key for key, _ in self._selector.select(timeout)]
        now = self.looked_at = time.monotonic()
        if self._signals is not None and any(key.data is None for key in events):
            self._signals.hear()
        changed: dict[Rank, None] = {}
        for key in events:
            if key.data is None:
                continue
            rank, has_ended = key.data
            changed[rank] = None
            if rank.ended:
                self.forget(key.fd)
                continue
            inbox = rank.inbox_fd
            if has_ended:
                self.drop(rank)
                rank.reap(now if since is None else max(rank.started_at, since))
            else:
                rank.read()
            if rank.inbox_fd < 0:
                self.forget(inbox)
        return list(changed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
