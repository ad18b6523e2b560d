"""The segments that this process has made: size classes, free cells, and how many segments it keeps.

Making a segment costs 20 to 100 times its use: the system has to find and clear its pages. So a process keeps those
that it has made, up to a limit (``MP_CACHE_BYTES``), and uses a cell again once nobody has a reference to it. A segment
beyond the limit is unlinked by its last user, whichever process that is.

    up to 16 KiB    cells of 64 bytes, 128, ... in a segment of up to 64 KiB for its class
    more            one cell in a segment, in eight classes for each power of two
"""

from __future__ import annotations

import os
import time
from collections import deque

from mp_core.sharing.portable import key_files
from mp_core.sharing.portable import segment as segments
from mp_core.sharing.portable.segment import KEPT, Segment
from mp_core.system import settings

_SLAB = 1 << 16
_MOST_CELLS = 256
_LARGEST_CELL = 1 << 14
_SMALLEST_CELL = 1 << 6
#: Segments that are examined for a free cell, the oldest of their class first.
_EXAMINED = 16
#: Seconds between two searches for references of dead processes.
_EVERY_S = 0.5
#: Seconds for which a search waits for the lock of one segment. Without it a new segment is made.
_PATIENCE_S = 0.01
DEFAULT_LIMIT = 1 << 28


def cell_size(nbytes: int) -> int:
    """
    Return the size of the cell for a block.

    >>> [cell_size(n) for n in (0, 65, 16384, 16385, 100_000)]
    [64, 128, 16384, 18432, 106496]
    """
    if nbytes <= _LARGEST_CELL:
        return 1 << (max(nbytes, _SMALLEST_CELL) - 1).bit_length()
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


class OwnSegments:
    """They need the lock of this process (`references.py`)."""

    def __init__(self) -> None:
        limit = settings.cache_bytes()
        self.limit = DEFAULT_LIMIT if limit is None else limit
        self.kept_bytes = 0
        self._by_size: dict[int, deque[Segment]] = {}
        self._free: dict[int, list[tuple[Segment, int]]] = {}
        self._searched_at = 0.0
        self._has_cleaned_up = False

    def all(self) -> list[Segment]:
        """Return the segments that this process keeps."""
        return [each for group in self._by_size.values() for each in group]

    def cell(self, nbytes: int) -> tuple[Segment, int, bool]:
        """Return a segment, a free cell of it, and whether it may have been used before; `OSError` if none is left."""
        size = cell_size(nbytes)
        found = self._used_before(size)
        if found is not None:
            return (*found, True)
        cells = min(_MOST_CELLS, _SLAB // size) if size <= _LARGEST_CELL else 1
        needed = cells * size
        kept = cells > 1 or segments.system.dies_with_last_handle()
        if not kept or self.kept_bytes + needed > self.limit:
            kept = self._make_room(needed) or kept
        try:
            made = self._create(cells, size, kept)
        except OSError:
            if not self.drop_unused():
                raise
            made = self._create(cells, size, kept)
        if kept:
            self.kept_bytes += needed
            self._by_size.setdefault(size, deque()).append(made)
            self._free.setdefault(size, []).extend((made, cell) for cell in reversed(range(1, cells)))
        return made, 0, False

    def _create(self, cells: int, size: int, kept: bool) -> Segment:
        key = os.urandom(segments.KEY_SIZE)
        if kept:
            segments.identity()  # makes the folder of the key files
            if not self._has_cleaned_up:
                self._has_cleaned_up = True
                key_files.clean_up()
            if key_files.note(key):
                key_files.rewrite([*(each.key for each in self.all()), key])
        return segments.create(key, cells, size, kept)

    def _used_before(self, size: int) -> tuple[Segment, int] | None:
        free = self._free.get(size)
        if free:
            return free.pop()
        group = self._by_size.get(size) or deque()
        dead = False
        if len(group) > 0 and time.monotonic() - self._searched_at > _EVERY_S:
            dead, self._searched_at = True, time.monotonic()
        for _ in range(min(_EXAMINED, len(group))):
            candidate = group[0]
            group.rotate(-1)
            if cells := _find_free_cells(candidate, dead):
                self._free[size] = [(candidate, cell) for cell in reversed(cells)]
                return self._free[size].pop()
        return None

    def _make_room(self, needed: int) -> bool:
        """Return whether there is room for so many more bytes to be kept, after dropping segments without use."""
        if self.kept_bytes + needed > self.limit >= needed:
            self.drop_unused(self.kept_bytes + needed - self.limit)
        return self.kept_bytes + needed <= self.limit

    def drop_unused(self, most: int | None = None) -> bool:
        """Unlink segments without references, up to *most* bytes or a little more; return whether there were any."""
        before = self.kept_bytes
        for size, group in list(self._by_size.items()):
            for candidate in list(group):
                if most is not None and before - self.kept_bytes >= most:
                    return True
                if _unlink_if_unused(candidate):
                    self._forget(size, candidate)
        return self.kept_bytes < before

    def stop_keeping(self) -> None:
        """Unlink the segments without references, and leave the others to their last users."""
        self.drop_unused()
        if segments.system.dies_with_last_handle():
            return
        for size, group in list(self._by_size.items()):
            for each in list(group):
                if each.cells == 1:
                    self._forget(size, each)
                    with each:
                        each.set_flag(KEPT, False)
                        each.unlink_if_unused()

    def _forget(self, size: int, gone: Segment) -> None:
        self._by_size[size].remove(gone)
        self._free[size] = [place for place in self._free.get(size, []) if place[0] is not gone]
        self.kept_bytes -= gone.cells * gone.cell_size

    def cached_bytes(self) -> int:
        """Return the bytes of the free cells."""
        return sum(len(each.free_cells()) * each.cell_size for each in self.all())


# Note [A search needs the segment's lock]
#
#     A process that forwards an array and drops its own makes one entry and clears another. Without the lock a search
#     can pass the place of the new entry before it is made, and come to the old one after it is cleared; it would find
#     neither, and the memory would be used again under the receiver. With the lock it sees the table before both or
#     after both. A cell that was found free stays free: only its owner, this process, can refer to it again.


def _find_free_cells(candidate: Segment, drop_dead: bool) -> list[int]:
    """Return the cells without references; none if another process, perhaps a stopped one, has the lock."""
    if not candidate.try_lock(_PATIENCE_S):
        return []
    try:
        if drop_dead and not candidate.is_unused():
            candidate.drop_dead()
        return candidate.free_cells()
    finally:
        candidate.unlock()


def _unlink_if_unused(candidate: Segment) -> bool:
    """Unlink a segment that nobody refers to; return whether it is so."""
    if not candidate.try_lock(_PATIENCE_S):
        return False
    try:
        if not candidate.is_unused():
            candidate.drop_dead()
        if candidate.is_unused():
            candidate.unlink()
            return True
        return False
    finally:
        candidate.unlock()
