"""The payload: `fn` and its arguments, as bytes in a memory file that every rank reads for itself.

Note [Handing over without waiting]
-----------------------------------
The standard library writes a child's pickle into a pipe, which blocks at 64 KiB until the child has imported
its modules: large arguments start the children one after the other. Here the bytes lie in an anonymous file
in memory, and what goes through the pipe is its descriptor:

    parent:  fn, args --pickle--> memfd        Process(args=(orders,)) --pickle--> about 200 bytes
                                    |                                                  |
    rank:    fn, args <--unpickle-- mmap  <----------- descriptor ---------------------+

Descriptors inside the arguments (a queue has two) are numbered by their place in a list that travels beside
the memory file; so the bytes are the same for every rank, and are made once.

One exception: what a reducer from outside multiprocessing has pickled (an array in shared memory) may hold a
claim that a single process can take. Then each rank has a payload of its own; the decision is in `payloads`.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

from mp_spawn.pickling import dumps, plainly, registered_elsewhere

__all__ = ["Handed", "Here", "Payload", "Source", "memory_file", "on_its_way", "payloads"]

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Source(Protocol):
    """Where a rank finds `fn` and its arguments."""

    def load(self) -> Call: ...
    def close(self) -> None: ...


class Here:
    """Under fork: they are here already."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call = fn, args

    def load(self) -> Call:
        return self._call

    def close(self) -> None: ...


class Handed:
    """A descriptor that travels with a process that is being started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (DupFd(self.fd),)


def _arrive(duplicate: Any) -> Handed:
    return Handed(duplicate.detach())


class Payload:
    """`fn` and its arguments in a memory file, and the descriptors among them."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], start_method: str) -> None:
        kinds = ", ".join(type(arg).__name__ for arg in args)
        what = f"fn={getattr(fn, '__qualname__', fn)!s} with args of ({kinds})"
        collector = _Collector()
        try:
            with on_its_way(collector):
                greeting = collector.greeting()
                data, self.many = dumps((fn, args), what, start_method)
            self.fds = [memory_file(greeting), memory_file(data), *collector.fds]
        except BaseException:
            collector.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _adopt, ([Handed(fd) for fd in self.fds],)

    def load(self) -> Call:
        """In the rank: take everything out. Works once."""
        global _arrived
        greeting, call, *_arrived = self.fds
        self.fds = []
        try:
            _unpickle(greeting)
            fn, args = _unpickle(call)
        finally:
            _arrived = []
        return fn, args

    def close(self) -> None:
        """In the parent, when the ranks have been started."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)


def payloads(fn: Callable[..., Any], args: tuple[Any, ...], count: int, start_method: str) -> list[Source]:
    """
    A payload for each of *count* ranks: the same one where it may be unpickled more than once.
    """
    if start_method == "fork":
        return [Here(fn, args)] * count
    first = Payload(fn, args, start_method)
    if first.many:
        return [first] * count
    return [first, *(Payload(fn, args, start_method) for _ in range(count - 1))]


# In a rank, while its payload is unpickled: the descriptors that the numbers in it stand for.
_arrived: list[int] = []


class _Number:
    """A descriptor inside a payload: its place in the list beside it."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return _arrived[self._index]


@contextmanager
def on_its_way(process: Any) -> Iterator[None]:
    """
    What is pickled inside goes to *process*, which is being started: locks and queues insist on that.
    """
    before = context.get_spawning_popen()
    context.set_spawning_popen(process)
    try:
        yield
    finally:
        context.set_spawning_popen(before)


class _Collector:
    """Stands where multiprocessing expects the process that is being started, and collects descriptors."""

    DupFd = _Number

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        # A duplicate for each use, so that each of those who take it owns a descriptor.
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def greeting(self) -> bytes:
        """
        A connection, when somebody has registered a way of his own to send one.

        mp-core puts into its pickle what a child must register so that it, too, can send arrays.
        """
        from multiprocessing.connection import Connection  # late, as every rank imports this module

        if not registered_elsewhere(Connection):
            return plainly(None)
        read, write = os.pipe()
        os.close(write)
        with Connection(read, writable=False) as connection:
            return plainly(connection)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _adopt(handed: list[Handed]) -> Payload:
    payload = Payload.__new__(Payload)
    payload.fds = [each.fd for each in handed]
    return payload


def memory_file(*parts: bytes) -> int:
    """
    A file without a name that holds *parts*.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mp-spawn")
    else:
        import tempfile

        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(fd, rest) :]
    return fd


def _unpickle(fd: int) -> Any:
    # Mapped and not read: ranks share an offset, and large arguments need no second copy.
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
        os.close(fd)
        return pickle.loads(data)
