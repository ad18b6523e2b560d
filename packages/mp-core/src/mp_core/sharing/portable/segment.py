"""Segments of portable sharing: objects of `multiprocessing.shared_memory`, each with a table of references.

Note [A segment]
----------------
    words     0 magic    1 pid of the owner    2 flags    3 identity of the locks    4 cells    5 bytes of a cell
              6 entries of the table           7 offset of the data
    sizes     a word for each cell: the bytes of the block in it
    counts    a word for each cell: its entries, or more if a process died while it changed one
    tokens    a word for each entry of the table, 0: the entry is free
    details   a word for each entry: cell << 32 | pid of the process that holds it, 0 for a message in flight
    data      the cells

A block is a cell. Each reference to it is an entry with a random token: the claim of a message in flight, which the
message carries, or of a process. A receiver makes the claim of its message its own by the store of its pid, so a killed
process leaves an entry with its pid, or a message in flight, and never a count that is wrong. A cell without entries is
free. All changes are made under a lock between processes, one for each segment, which the kernel takes from a process
that dies (`machine`); each is the store of one word, so nobody finds one half done.

Note [Who dies where]
---------------------
    the sender, before it has sent       the entry of its message stays until all processes have ended
    the sender, afterwards               nothing changes: the message is received, under Windows if a process has the
                                         segment open, else it is a `ReceiveError`
    the receiver, before it has taken    the entry of the message stays likewise
    the receiver, afterwards             its pid is in the entry, which counts for nobody once there is no such process
    both                                 the segment stays until the resource tracker unlinks it, when the last process
                                         of the tree has ended; under Windows it goes with its last handle
    the resource tracker                 the next segment starts another one, which does not know the older segments:
                                         their users unlink them, but those of killed processes stay
"""

from __future__ import annotations

import binascii
import ctypes
import os
import sys

from mp_core.system import machine, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The rules of this system.
system = machine.functions()
_locks = system.Locks(settings.runtime_folder, system.pid_namespace)

identity = _locks.identity
#: Call a function that opens files, also where this process has no descriptor left.
with_descriptors = system.SpareDescriptors().call
KEY_SIZE = 16
_MAGIC = 0x3153504D42545250
_MAGIC_AT, _OWNER, _FLAGS, _LOCKS, _CELLS, _CELL_SIZE, _ENTRIES, _DATA = range(8)
_WORDS = 8

#: Flags: the owner keeps the segment for its next blocks; the blocks in it are never freed.
KEPT, PINNED = 1, 2
#: In the pid of an entry: the process is at its end, and sends no more.
LEAVING = 1 << 31
_PID = (1 << 31) - 1


# Entries of a table: more than a pipe holds messages.
_LEAST_ENTRIES = 1000


def name_of(key: bytes) -> str:
    """
    Return the name of the segment with that key, 128 random bits.

    macOS's shm_open(2) takes names of 31 bytes at most (PSHMNAMLEN), with the slash before it; this one has 30. Windows
    looks names without a prefix up in the namespace of the session (CreateFileMapping).
    """
    number, letters = int.from_bytes(key, "big"), []
    for _ in range(26):
        letters.append("0123456789abcdefghijklmnopqrstuv"[number & 31])
        number >>= 5
    return "mps-" + "".join(letters)


class Byte(ctypes.Union):
    """A byte whose format in the buffer protocol is that of bytes: a union has it, a number of ctypes has not."""

    _fields_ = (("byte", ctypes.c_ubyte),)


def new_token() -> int:
    return int.from_bytes(os.urandom(8), "little") or 1


class Segment:
    """One segment, mapped in this process; `create` and `attach` make it. Its methods need its lock but `lock`."""

    __slots__ = (
        "base",
        "cell_size",
        "cells",
        "counts",
        "data",
        "details",
        "holds",
        "is_own",
        "key",
        "lock_number",
        "mapping",
        "memory",
        "next_entry",
        "sizes",
        "tokens",
        "words",
    )

    def __init__(self, key: bytes, memory: Any, mapping: Any, is_own: bool) -> None:
        self.key = key
        self.memory = memory
        self.mapping = mapping
        self.is_own = is_own
        self.lock_number = 1 + (binascii.crc32(key) & (2**31 - 1))
        words = memoryview(mapping)[: len(mapping) // 8 * 8].cast("Q")
        self.words = words
        self.cells, self.cell_size, entries, self.data = words[_CELLS : _DATA + 1]
        at = _WORDS + 2 * self.cells
        if not (at + 2 * entries) * 8 <= self.data <= self.data + self.cells * self.cell_size <= len(mapping):
            raise ValueError(f"the segment {name_of(key)} is damaged")
        self.sizes, self.counts = words[_WORDS : _WORDS + self.cells], words[_WORDS + self.cells : at]
        self.tokens = words[at : at + entries]
        self.details = words[at + entries : at + 2 * entries]
        self.next_entry = 0
        self.base = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
        self.holds = 0

    # ---- the lock ----

    def lock(self) -> None:
        _locks.acquire(self.lock_number)

    def try_lock(self, longest: float) -> bool:
        """Acquire the lock of this segment, and return True, unless another process has it for *longest* seconds."""
        try:
            _locks.acquire(self.lock_number, longest)
        except TimeoutError:
            return False
        return True

    def unlock(self) -> None:
        _locks.release(self.lock_number)

    def __enter__(self) -> None:
        self.lock()

    def __exit__(self, *error: object) -> None:
        self.unlock()

    # ---- the table ----

    def add(self, cell: int, pid: int, token: int) -> tuple[int, int]:
        """Make an entry; return its index and its token. `OverflowError` if the table is full."""
        tokens, count = self.tokens, len(self.tokens)
        index = self.next_entry
        if tokens[index]:
            index = next((i for i in (*range(index, count), *range(index)) if not tokens[i]), count)
            if index == count:
                raise OverflowError(f"{count} messages and processes have references to one segment already")
        self.counts[cell] += 1
        self.details[index] = cell << 32 | pid
        tokens[index] = token  # last: now it is an entry
        self.next_entry = (index + 1) % count
        return index, token

    def has(self, index: int, token: int) -> bool:
        """Return whether the message in flight, or the process, with that token has the entry."""
        return 0 <= index < len(self.tokens) and token != 0 and self.tokens[index] == token

    def is_in_flight(self, index: int) -> bool:
        """Return whether the entry is a message's."""
        return not self.details[index] & 0xFFFFFFFF

    def hand_over(self, index: int, pid: int) -> None:
        """Make the entry that of a process."""
        self.details[index] = self.details[index] & ~0xFFFFFFFF | pid

    def cell_of(self, index: int) -> int:
        return self.details[index] >> 32

    def drop(self, index: int) -> None:
        self.tokens[index] = 0
        self.counts[self.cell_of(index)] -= 1

    def entries(self) -> list[tuple[int, int, int]]:
        """Return (index, cell, pid) of each entry."""
        pairs = zip(self.tokens.tolist(), self.details.tolist(), strict=True)
        return [(i, detail >> 32, detail & 0xFFFFFFFF) for i, (token, detail) in enumerate(pairs) if token]

    def is_unused(self) -> bool:
        """Return whether no cell has a reference."""
        tokens = self.tokens.tobytes()
        return tokens.count(0) == len(tokens) and not self.words[_FLAGS] & PINNED

    def drop_dead(self) -> None:
        """Free the entries of processes that are no more."""
        entries = self.entries()
        dead = {pid for pid in {pid & _PID for _, _, pid in entries} if pid and not system.is_alive(pid)}
        for index, _, pid in entries:
            if pid & _PID in dead:
                self.drop(index)

    def free_cells(self) -> list[int]:
        """Return the cells without references."""
        if self.words[_FLAGS] & PINNED:
            return []
        if self.is_unused():
            return list(range(self.cells))
        used = {cell for _, cell, _ in self.entries()}
        return [cell for cell in range(self.cells) if cell not in used]

    # ---- the whole ----

    def has_flag(self, flag: int) -> bool:
        return bool(self.words[_FLAGS] & flag)

    def set_flag(self, flag: int, on: bool) -> None:
        flags = self.words[_FLAGS]
        self.words[_FLAGS] = flags | flag if on else flags & ~flag

    def abandon(self) -> None:
        """Let the last user unlink the segment: its owner, this process, makes no more blocks in it."""
        self.words[_OWNER] = 0

    def is_left_to_its_users(self) -> bool:
        """Return whether the last user has to unlink it: its owner does not keep it, or has gone."""
        return not (self.has_flag(KEPT) and self.words[_OWNER] and self.owner_lives())

    def owner_lives(self) -> bool:
        return self.is_own or system.is_alive(self.words[_OWNER])

    def unlink_if_unused(self) -> bool:
        """Unlink the segment unless somebody may still receive or send a block of it; return whether it is so."""
        if not self.is_unused():
            self.drop_dead()
            if self.has_flag(PINNED) or any(not pid & LEAVING for _, _, pid in self.entries()):
                return False
        self.unlink()
        return True

    def unlink(self) -> None:
        """Remove the name of the segment, if that was not done before."""
        if self.memory is not None:
            unlink(self.memory)
            self.memory = None

    def offset(self, cell: int) -> int:
        """Return the place of a cell in the mapping."""
        return self.data + cell * self.cell_size


def create(key: bytes, cells: int, cell_size: int, kept: bool) -> Segment:
    """Make the segment with that key, zeroed, for this process; `OSError` if there is no memory or descriptor."""
    from multiprocessing.shared_memory import SharedMemory  # imports hashlib, and few processes make one

    entries = max(_LEAST_ENTRIES, 16 * cells)
    data = -(-(_WORDS + 2 * cells + 2 * entries) * 8 // 4096) * 4096
    memory: Any = SharedMemory(name_of(key), create=True, size=system.whole_pages(data + cells * cell_size))
    try:
        system.reserve(memory._fd, memory.size)
        mapping = system.mapping_of(memory, Byte)
        words = memoryview(mapping)[: _WORDS * 8].cast("Q")
        header = (os.getpid(), KEPT if kept else 0, identity(), cells, cell_size, entries, data)
        for at, word in enumerate(header, _OWNER):
            words[at] = word
        words[_MAGIC_AT] = _MAGIC  # last: now it is a segment
    except BaseException:
        unlink(memory)
        raise
    return Segment(key, memory, mapping, True)


def attach(key: bytes, only_to_read: bool = False) -> Segment:
    """
    Map a segment of another process. It raises `OSError`, and `FileNotFoundError` if it is gone.

    A process with other locks than its maker is refused, unless it is *only_to_read* one message.
    """
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(name_of(key), **_UNTRACKED)
    mapping = system.mapping_of(memory, Byte)
    words = memoryview(mapping)[: _WORDS * 8].cast("Q") if len(mapping) >= _WORDS * 8 else [0]
    if words[_MAGIC_AT] != _MAGIC:
        raise ValueError(f"{name_of(key)} is no segment of these packages")
    if words[_LOCKS] != identity() and not only_to_read:
        raise PermissionError(1, "its processes have another runtime folder, or other pids, than this one")
    return Segment(key, memory, mapping, False)


# Python's rule: before 3.13 a process that attaches to a segment registers it with its resource tracker, which is that
# of the whole tree. One entry is enough, and the maker has made it.
_UNTRACKED: Any = {"track": False} if sys.version_info >= (3, 13) else {}


def unlink(memory: Any) -> None:
    """Remove the name of a segment, and let the resource tracker know, also one that was started after a kill."""
    if system.dies_with_last_handle():
        return
    from multiprocessing import resource_tracker

    name = memory._name
    resource_tracker.register(name, "shared_memory")
    try:
        memory.unlink()
        known = not getattr(memory, "_track", True)
    except FileNotFoundError:
        known = True
    if known:
        resource_tracker.unregister(name, "shared_memory")
