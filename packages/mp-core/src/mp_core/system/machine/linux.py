"""Linux without libshm, for tests and to try a program as it runs on macOS and Windows."""

# mypy: disable-error-code="no-redef"

from __future__ import annotations

import os

from mp_core.system.machine.posix import *  # noqa: F403 - its functions, unless they are defined below

NAME = "Linux"
_OWN = "/proc/thread-self/comm"


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; the kernel keeps 15 bytes."""
    with open(_OWN, "wb", buffering=0) as file:
        file.write(name + b"\0")  # or an empty name would write nothing


def get_thread_name() -> bytes:
    """Return the kernel's name of the calling thread."""
    with open(_OWN, "rb") as file:
        return file.read().removesuffix(b"\n")


def reserve(fd: int, nbytes: int) -> None:
    """
    Reserve the pages of a segment, or raise the `OSError` that says that there is no memory.

    tmpfs(5): a file has pages when they are first written. If the file system is full by then, the process gets SIGBUS;
    posix_fallocate(3) gives the file its pages now.
    """
    os.posix_fallocate(fd, 0, nbytes)


def pid_namespace() -> int:
    """Return the number of the namespace in which this process has its pid, see pid_namespaces(7); 0 if unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
