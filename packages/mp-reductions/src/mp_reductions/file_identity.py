"""Which file a mapping maps, and what a file is beside its path.

Note [A path is not a file]
---------------------------
A program that saves writes a new file and moves it over the old one, so a path may lead to another file than a moment
ago. What was mapped is compared with what a path leads to, on both sides:

    sender      two mappings are of one file if /proc/self/maps says the same of both. It names the files of some
                file systems (overlayfs, btrfs) other than stat(2) does, so the file at the path is mapped as well
    receiver    the file that it has opened has the identity that the sender has found

A deleted file leaves its inode number to the next new file, on ext4 at once. So an identity also has the handle of the
file, in which file systems count the uses of an inode number (name_to_handle_at(2)), and the time when it was made.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any, NamedTuple

import numpy as np


class FileIdentity(NamedTuple):
    """What a file is, wherever its path leads."""

    device: int
    inode: int
    handle: bytes
    """Empty if the system or the file system has none."""
    made: int
    """Nanoseconds since the epoch; 0 if unknown."""

    def is_same(self, other: FileIdentity) -> bool:
        """Return whether both are of one file; a process that may not ask for a handle is satisfied with the rest."""
        mine, yours = (self.device, self.inode), (other.device, other.inode)
        handles = not self.handle or not other.handle or self.handle == other.handle
        return mine == yours and handles and (not self.made or not other.made or self.made == other.made)


def identity_of(fd: int) -> FileIdentity:
    st = os.fstat(fd)
    made: int = getattr(st, "st_birthtime_ns", 0) or int(getattr(st, "st_birthtime", 0) * 10**9) or _made(fd)
    return FileIdentity(st.st_dev, st.st_ino, _handle_of(fd), made)


class Mapping(NamedTuple):
    """A line of /proc/self/maps, see proc_pid_maps(5)."""

    start: int
    offset: int
    is_shared: bool
    file: tuple[str, int]
    """Device and inode."""
    path: str
    """Empty for memory without a file."""


def mappings_at(*addresses: int) -> list[Mapping | None]:
    """Return the mapping that contains each address; None where there is none. `OSError` without /proc."""
    found: dict[int, Mapping] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            # 7f0000000000-7f0000001000 rw-s 00000000 00:17 42      /dev/shm/name
            place, mode, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
            start, end = (int(number, 16) for number in place.split("-"))
            for address in addresses:
                if start <= address < end:
                    file = device, int(inode)
                    found[address] = Mapping(start, int(offset, 16), mode[3] == "s", file, path[0] if path else "")
    return [found.get(address) for address in addresses]


def place_in_file(address: int, fd: int) -> int | None:
    """
    Return the place in an open file of the byte that is mapped at *address*; None if another file is mapped there.

    The mapping must be shared. `OSError` or `ValueError` if nothing of the file can be mapped, and without /proc.
    """
    with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as page:
        # No buffer of a mapping may be left when it is closed.
        ours, its = mappings_at(address, np.frombuffer(page, np.uint8).__array_interface__["data"][0])
    if ours is None or its is None or not ours.is_shared or ours.file != its.file:
        return None
    return ours.offset + address - ours.start


# ---- Linux's calls, which Python does not have -----------------------------------------------------------------------

_AT_EMPTY_PATH, _AT_HANDLE_FID = 0x1000, 0x200
_STATX_BTIME = 0x800


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)


class _Handle(ctypes.Structure):
    _fields_ = (("nbytes", ctypes.c_uint), ("type", ctypes.c_int), ("content", ctypes.c_ubyte * 128))


def _handle_of(fd: int) -> bytes:
    call = getattr(_libc(), "name_to_handle_at", None)
    # Some file systems make handles only for comparison, which Linux 6.5 and later give if they are asked for.
    for flags in (_AT_EMPTY_PATH, _AT_EMPTY_PATH | _AT_HANDLE_FID):
        handle, mount = _Handle(nbytes=128), ctypes.c_int()
        if call is not None and call(fd, b"", ctypes.byref(handle), ctypes.byref(mount), flags) == 0:
            return bytes(handle)[4 : 8 + handle.nbytes]
    return b""


class _Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("until_times", ctypes.c_ubyte * 76),
        ("made_s", ctypes.c_int64),
        ("made_ns", ctypes.c_uint32),
        ("rest", ctypes.c_ubyte * 164),
    )


def _made(fd: int) -> int:
    call, stx = getattr(_libc(), "statx", None), _Statx()
    if call is None or call(fd, b"", _AT_EMPTY_PATH, _STATX_BTIME, ctypes.byref(stx)) != 0:
        return 0
    return stx.made_s * 10**9 + stx.made_ns if stx.mask & _STATX_BTIME else 0
