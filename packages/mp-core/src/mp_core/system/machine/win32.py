"""Windows. Its libraries are called through ctypes, so that no compiler is needed to install."""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
from collections.abc import Callable
from typing import Any

NAME = "Windows"


def _kernel32() -> Any:
    library = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    for name in ("GetCurrentThread", "OpenProcess", "CreateMutexW"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; Windows 10 keeps it."""
    library = _kernel32()
    text = ctypes.c_wchar_p(name.decode(errors="replace"))
    _check(library.SetThreadDescription(ctypes.c_void_p(library.GetCurrentThread()), text), "set_thread_name")


def get_thread_name() -> bytes:
    library = _kernel32()
    text = ctypes.c_wchar_p()
    thread = ctypes.c_void_p(library.GetCurrentThread())
    _check(library.GetThreadDescription(thread, ctypes.byref(text)), "get_thread_name")
    try:
        return (text.value or "").encode()
    finally:
        library.LocalFree(text)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what} failed with {result & 0xFFFFFFFF:#x}")


def peer(fd: int) -> tuple[int, int]:
    """Return the address family of a `Connection`: a socket of a network. A pipe is of another class on Windows."""
    return socket.AF_INET, 0


# ---- the rules for portable sharing ----------------------------------------------------------------------------------

_SYNCHRONIZE = 0x00100000
_INVALID_PARAMETER = 87
_SIGNALLED, _ABANDONED, _TIMEOUT = 0, 0x80, 0x102


def whole_pages(nbytes: int) -> int:
    """Return the size of a segment that has room for *nbytes*; VirtualQuery reports sizes in whole pages."""
    return nbytes + -nbytes % mmap.PAGESIZE


def reserve(fd: int, nbytes: int) -> None:
    """Do nothing. CreateFileMapping: a section that the paging file backs is committed when it is made (SEC_COMMIT)."""


def mapping_of(memory: Any, kind: Any) -> Any:
    """
    Take the mapping out of a `SharedMemory`, which is closed; *kind* is not needed.

    `SharedMemory` unmaps its memory by a call, which fails as long as an array refers to it. Its mapping by itself has
    the handle of the section, and is unmapped with the last object that refers to it (UnmapViewOfFile).
    """
    mapping = memory._mmap
    memory._buf.release()
    memory._buf = memory._mmap = None
    memory.close()
    return mapping


def dies_with_last_handle() -> bool:
    """Return True. CreateFileMapping: a section is gone when all handles and views are closed; nothing unlinks it."""
    return True


def is_alive(pid: int) -> bool:
    """Return False if there is certainly no process *pid* any more: OpenProcess finds none, or it has ended."""
    library = _kernel32()
    handle = library.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return bool(ctypes.get_last_error() != _INVALID_PARAMETER)  # type: ignore[attr-defined]
    try:
        return bool(library.WaitForSingleObject(ctypes.c_void_p(handle), 0) == _TIMEOUT)
    finally:
        library.CloseHandle(ctypes.c_void_p(handle))


def pid_namespace() -> int:
    """Return 0: there is one namespace of pids."""
    return 0


class SpareDescriptors:
    """None: a handle of a section is no descriptor (_get_osfhandle)."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Locks:
    """
    Locks between processes, each known by a number; a process that dies has none any more.

    CreateMutex: a mutex with a name, in the namespace of the session. If its owner ends, the next one that waits has
    it, and is told so (WAIT_ABANDONED). A mutex is gone with its last handle.
    """

    LONGEST = 10.0  # seconds. Somebody is stopped in the middle of a few microseconds' work

    def __init__(self, folder: Callable[[], str], namespace: Callable[[], int]) -> None:
        self._library: Any = None
        self._held: dict[int, Any] = {}

    def identity(self) -> int:
        """Return 1: all processes of a session have the same names."""
        return 1

    def acquire(self, number: int, longest: float = LONGEST) -> None:
        """Acquire a lock; TimeoutError if a process does not release it in *longest* seconds."""
        if self._library is None:
            self._library = _kernel32()
        handle = self._library.CreateMutexW(None, False, ctypes.c_wchar_p(f"Local\\mps-{number:x}"))
        if not handle:
            raise OSError(errno.ENOMEM, "CreateMutex failed")
        mutex = ctypes.c_void_p(handle)
        if self._library.WaitForSingleObject(mutex, int(longest * 1000)) not in (_SIGNALLED, _ABANDONED):
            self._library.CloseHandle(mutex)
            raise TimeoutError(errno.ETIMEDOUT, "a process has stopped while it had a lock of shared memory")
        self._held[number] = mutex

    def release(self, number: int) -> None:
        mutex = self._held.pop(number)
        self._library.ReleaseMutex(mutex)
        self._library.CloseHandle(mutex)
