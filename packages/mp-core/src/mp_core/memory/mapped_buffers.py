"""Bytes in a file in memory, which other processes map: one copy for all of them, and writable in each.

Note [Private mappings]
-----------------------
Many tasks get the same bytes. A message of its own for each costs a copy each; one shared block would show the writes
of a task to the others. So the bytes are copied once, into a file in memory without a name (memfd), and each task maps
that file privately: pages are shared until a task writes to them, and then the kernel copies the page for that task.

    owner    bytes --> memfd, and a place of about 50 bytes
    worker   opens /proc/<owner>/fd/<number>, checks device and inode, maps it, closes it

- The file lives as long as a descriptor in the owner or a mapping in a worker: if they are killed, nothing is left.
- If the owner dies before a worker opens the file, that worker, its child, also ends.
- All pages are allocated by the copy, and the size is sealed: an access cannot be a bus error.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import weakref
from typing import Any

__all__ = ["MappedBuffer", "can_open", "map_privately"]

_open: weakref.WeakSet[MappedBuffer] = weakref.WeakSet()
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MappedBuffer:
    """A copy of some bytes in a file in memory, which lives until this object is dropped."""

    def __init__(self, content: Any) -> None:
        self.fd = os.memfd_create("mp_core input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd).atexit = False
        _open.add(self)
        # Writing allocates the pages; writing through a mapping would have the kernel clear them before.
        rest = memoryview(content)
        size = rest.nbytes
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        status = os.fstat(self.fd)
        #: The arguments of `map_privately` but the last.
        self.place = os.getpid(), self.fd, status.st_dev, status.st_ino, size


def can_open() -> bool:
    """
    Return whether this process may open one more file, and its workers that: not after a change of its user.
    """
    few = len(_open) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    try:
        return few and os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:
        return False  # without /proc


def map_privately(pid: int, fd: int, device: int, inode: int, nbytes: int, writable: bool) -> mmap.mmap:
    """
    Map the file of that place; `FileNotFoundError` if its owner has it no longer.
    """
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileNotFoundError(f"an input of a task is gone: its process {pid} has ended or dropped it") from error
    try:
        status = os.fstat(own)
        if (status.st_dev, status.st_ino, status.st_size) != (device, inode, nbytes):
            raise FileNotFoundError(f"an input of a task is gone: descriptor {fd} of process {pid} is another file")
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        return mmap.mmap(own, nbytes, mmap.MAP_PRIVATE, access)
    finally:
        os.close(own)
