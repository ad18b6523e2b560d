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

The call of a job, and the function of a pool's `map`, have their buffers in one file or block each, at the places that
`laid_out` gives them. Its descriptor is sent to the ranks and workers, which map it by `map_buffers`.
"""

from __future__ import annotations

import errno
import os
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Sequence
    from typing import Any

#: The offset of each buffer, its size in bytes, and whether it is read-only.
Spans = list[tuple[int, int, bool]]

ALIGNMENT = 64  # of a buffer, in bytes: a cache line

_open: weakref.WeakSet[MappedBuffer] = weakref.WeakSet()


def laid_out(sizes: Iterable[tuple[int, bool]]) -> tuple[Spans, int]:
    """
    Return the places of buffers of so many bytes, read-only or not, and the end of the last.

    >>> laid_out([(3, False), (64, True)])
    ([(0, 3, False), (64, 64, True)], 128)
    """
    spans, end = [], 0
    for nbytes, readonly in sizes:
        spans.append((end, nbytes, readonly))
        end += nbytes + -nbytes % ALIGNMENT
    return spans, end


def memory_file(*parts: bytes | memoryview, name: str = "mp_core") -> int:
    """Make a file without a name that holds *parts*, and return its descriptor."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # the system has none, or a sandbox refuses it
        import tempfile

        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
    try:
        for part in parts:
            # Writing allocates the pages; writing through a mapping would have the kernel clear them before.
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            nbytes = sum(memoryview(part).nbytes for part in parts)
            raise OSError(
                errno.EFBIG,
                f"another process would get {nbytes:,} bytes in a file, and this one may not make a file of that size; "
                "raise the limit (ulimit -f)",
            ) from None
        raise
    return fd


def map_buffers(fd: int, spans: Sequence[tuple[int, int, bool]], nbytes: int = 0, offset: int = 0) -> list[memoryview]:
    """
    Map *nbytes* bytes of a file from *offset* on, or all, and return the buffers in them. A page is copied when it is
    written to; a view keeps the mapping open. If all buffers are empty, the file may be -1.
    """
    import mmap

    memory = memoryview(bytearray())
    if fd >= 0:
        before = offset % mmap.ALLOCATIONGRANULARITY  # a mapping begins on a page
        length = before + nbytes if nbytes else 0
        memory = memoryview(mmap.mmap(fd, length, access=mmap.ACCESS_COPY, offset=offset - before))[before:]
    views = [(memory[start : start + size], readonly) for start, size, readonly in spans]
    return [view.toreadonly() if readonly else view for view, readonly in views]


class MappedBuffer:
    """A copy of some bytes in a file in memory, which lives until this object is dropped."""

    def __init__(self, content: Any) -> None:
        import fcntl

        self.fd = memory_file(memoryview(content), name="mp_core input")
        weakref.finalize(self, os.close, self.fd).atexit = False
        _open.add(self)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        status = os.fstat(self.fd)
        #: The arguments of `map_privately` but the last.
        self.place = os.getpid(), self.fd, status.st_dev, status.st_ino, status.st_size


def can_open() -> bool:
    """Return whether this process may open one more file, and its workers that: not after a change of its user."""
    import resource

    few = len(_open) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    try:
        return few and os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:
        return False  # without /proc


def map_privately(pid: int, fd: int, device: int, inode: int, nbytes: int, writable: bool) -> mmap.mmap:
    """Map the file of that place; `FileNotFoundError` if its owner has it no longer."""
    import mmap

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
