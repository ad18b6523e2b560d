"""A system with POSIX's threads and sockets."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import stat
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

NAME = sys.platform

#: The family of a connection that is no socket, and the pid of a peer that may be any process.
NO_SOCKET = -1
UNRELATED = -1


def set_thread_name(name: bytes) -> None:
    """Do nothing: POSIX has no names of threads."""


def get_thread_name() -> bytes:
    """Return an empty name."""
    return b""


def peer(fd: int) -> tuple[int, int]:
    """
    Return the address family of a connection, and the pid of its peer: 0 if it is unknown, -1 if it may be any process.

    A socket with a name was made by a listener, so its peer may be a program without these packages.
    """
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return NO_SOCKET, 0
    blocking = os.get_blocking(fd)
    end = socket.socket(fileno=fd)
    try:
        names = [end.getsockname()]
        try:
            names.append(end.getpeername())
        except OSError:
            pass  # the peer has gone
        return end.family, UNRELATED if any(names) else 0
    finally:
        end.detach()
        os.set_blocking(fd, blocking)  # a default timeout makes new sockets non-blocking


# ---- the rules for portable sharing ----------------------------------------------------------------------------------


def whole_pages(nbytes: int) -> int:
    """Return the size of a segment that has room for *nbytes*: mmap(2) maps whole pages."""
    return nbytes + -nbytes % mmap.PAGESIZE


def reserve(fd: int, nbytes: int) -> None:
    """Do nothing: POSIX's shm_open(3) does not tell whether memory can be reserved."""


def mapping_of(memory: Any, kind: Any) -> Any:
    """
    Take the bytes out of a `SharedMemory`, which is closed: an array of *kind*, a type of ctypes with one byte.

    mmap(2): a mapping stays when its descriptor is closed. Python's own mapping keeps a duplicate, so that each segment
    would take one of the 256 descriptors that macOS gives a process. This one is unmapped with the last object that
    refers to it.
    """
    nbytes: int = memory.size
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,  # off_t
    )
    library.mmap.restype = ctypes.c_void_p
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = library.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, memory._fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap of shared memory failed")
    memory.close()
    mapping = (kind * nbytes).from_address(address)
    weakref.finalize(mapping, library.munmap, address, nbytes).atexit = False  # handlers that run later may have arrays
    return mapping


def dies_with_last_handle() -> bool:
    """Return False. shm_unlink(3): an object has its name, and lives, until it is unlinked; open or not."""
    return False


def is_alive(pid: int) -> bool:
    """
    Return False if there is certainly no process *pid* any more: kill(2) with the signal 0 says ESRCH.

    A child that has ended counts as alive until its parent has waited for it; waitid(2) finds it if it is our own.
    """
    try:
        os.kill(pid, 0)
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's, or no child of ours
    return True


def pid_namespace() -> int:
    """Return 0: there is one namespace of pids."""
    return 0


class SpareDescriptors:
    """
    Descriptors that are kept for a process that has no others left, which shares memory all the same.

    getrlimit(2): RLIMIT_NOFILE bounds the numbers of descriptors. To make a segment or to attach to it takes two for a
    moment; the file of the locks takes one, which stays open.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._known: tuple[int, int] | None = None
        self._keep()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call *function*; if there is no descriptor for it, or for a module that it imports, again without these."""
        try:
            return function(*args)
        except (OSError, ImportError) as error:
            if getattr(error, "errno", errno.EMFILE) not in (errno.EMFILE, errno.ENFILE) or not self._release():
                raise
        try:
            return function(*args)
        finally:
            self._keep()

    def _keep(self) -> None:
        try:
            self._fds += os.pipe()  # no other file is the same, see `_release`
            self._known = _identity(os.fstat(self._fds[0]))
            self._fds.append(os.dup(self._fds[0]))
        except OSError:
            pass  # so many are left

    def _release(self) -> bool:
        """Close them, and return whether there were any; a program may have closed them, and use their numbers."""
        ours = []
        for fd in self._fds:
            try:
                if _identity(os.fstat(fd)) == self._known:
                    ours.append(fd)
            except OSError:
                pass  # it was closed
        self._fds.clear()
        for fd in ours:
            os.close(fd)
        return bool(ours)


class Locks:
    """
    Locks between processes, each known by a number; a process that dies has none any more.

    fcntl(2): each is a lock of one byte of a file, which the kernel releases when the process ends. A forked child has
    none of its parent's. Closing any descriptor of the file releases all of them, so there is one, and no lock is held
    while another function is called. A file in /tmp may be removed: processes that have opened different files must not
    share, so `identity` is a part of each segment.
    """

    PAUSE = 50e-6
    LONGEST = 10.0  # seconds. Somebody is stopped in the middle of a few microseconds' work

    def __init__(self, folder: Callable[[], str], namespace: Callable[[], int]) -> None:
        self._folder = folder
        self._namespace = namespace
        self._fd = -1
        self._known: tuple[int, int] | None = None

    def identity(self) -> int:
        """Return a number that is the same for processes that have the same locks, and the same pids."""
        self._descriptor()
        return hash((self._known, self._namespace())) & (2**64 - 1)

    def acquire(self, number: int, longest: float = LONGEST) -> None:
        """Acquire a lock; TimeoutError if a process does not release it in *longest* seconds."""
        import fcntl

        fd, until = self._descriptor(), 0.0
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            now = time.monotonic()
            until = until or now + longest
            if now > until:
                raise TimeoutError(errno.ETIMEDOUT, "a process has stopped while it had a lock of shared memory")
            time.sleep(self.PAUSE)

    def release(self, number: int) -> None:
        import fcntl

        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def _descriptor(self) -> int:
        """Return the descriptor, which a program may have closed; its number may be another file's by now."""
        try:
            if self._fd >= 0 and _identity(os.fstat(self._fd)) == self._known:
                return self._fd
        except OSError:
            pass
        folder = self._folder()
        path = os.path.join(folder, "portable.lock")
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        st = os.lstat(folder)
        if st.st_uid != os.geteuid() or not stat.S_ISDIR(st.st_mode) or st.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the folder is another user's, or open to others", folder)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        known = _identity(os.fstat(self._fd))
        if self._known not in (None, known):
            os.close(self._fd)
            self._fd = -1
            raise OSError(errno.ESTALE, "the lock file of shared memory was replaced", path)
        self._known = known
        return self._fd


def _identity(st: os.stat_result) -> tuple[int, int]:
    return st.st_dev, st.st_ino
