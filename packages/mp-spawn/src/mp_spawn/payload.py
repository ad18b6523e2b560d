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
the memory file; so the bytes are the same for every rank, and are made once. Two things are beside them:

    claims    what a single receiver may unpickle (a block of shared memory, which is counted): a number in the
              bytes, and pickled once for each rank
    buffers   the bytes of large private arrays: copied once, into a memory file that every rank maps privately,
              so that each can write to its own array and pays for the pages to which it does

One exception: what a reducer from outside multiprocessing has pickled, and nobody has said that it may be sent
to many (`mp_core._fan_out.declare`). Then each rank has a payload of its own; the decision is in `payloads`.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

from mp_spawn import pickling
from mp_spawn.pickling import pickled, plainly

__all__ = ["Buffers", "Handed", "Here", "Payload", "Source", "memory_file", "on_its_way", "payloads"]

# Of arrays in a memory file: a cache line.
ALIGNMENT = 64

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
        pickling.forked = True
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


class _Part:
    """A pickle in a memory file, with the descriptors in it."""

    fds: list[int]

    @classmethod
    @contextmanager
    def beginning(cls) -> Iterator[_Part]:
        """Collects the descriptors of what is pickled inside."""
        part = cls()
        part.fds = []
        try:
            with on_its_way(_Collector(part.fds)):
                yield part
        except BaseException:
            part.close()
            raise

    def end(self, data: bytes) -> None:
        """That was the pickle."""
        self.fds.insert(0, memory_file(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return _adopt, ([Handed(fd) for fd in self.fds],)

    def load(self, buffers: list[memoryview] | None = None) -> Any:
        """In the rank: take it out. Works once."""
        global _arrived
        file, *_arrived = self.fds
        self.fds = []
        try:
            # Mapped and not read: ranks share an offset, and large arguments need no second copy.
            with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
                os.close(file)
                return pickle.loads(data, buffers=buffers)
        finally:
            _arrived = []

    def close(self) -> None:
        """In the parent, when the ranks have been started; twice is fine."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)


def _adopt(handed: list[Handed]) -> _Part:
    part = _Part()
    part.fds = [each.fd for each in handed]
    return part


class Buffers:
    """The bytes of large private arrays, in a memory file that each rank maps for itself."""

    def __init__(self, buffers: list[pickle.PickleBuffer]) -> None:
        #: Where each begins, its bytes, and whether it may be written to.
        self.places: list[tuple[int, int, bool]] = []
        self.file: Handed | None = None
        if not buffers:
            return
        views = [buffer.raw() for buffer in buffers]
        parts: list[bytes | memoryview] = []
        end = 0
        for view in views:
            self.places.append((end, view.nbytes, view.readonly))
            padding = -view.nbytes % ALIGNMENT
            parts += [view, bytes(padding)]
            end += view.nbytes + padding
        # An empty file cannot be mapped.
        if end:
            self.file = Handed(memory_file(*parts))

    def load(self) -> list[memoryview]:
        """In the rank. What it writes to them is its own; a page is copied when it is written to."""
        # Lives as long as somebody looks at it.
        memory = memoryview(bytearray() if self.file is None else mmap.mmap(self.file.fd, 0, access=mmap.ACCESS_COPY))
        self.close()
        views = [(memory[start : start + nbytes], readonly) for start, nbytes, readonly in self.places]
        return [view.toreadonly() if readonly else view for view, readonly in views]

    def close(self) -> None:
        """Twice is fine."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file.fd)


class Payload:
    """`fn` and its arguments for one rank: *call* and *buffers*, which others have, too, and *claims*, its own."""

    def __init__(self, call: _Part, claims: _Part, buffers: Buffers) -> None:
        self._call = call
        self._claims = claims
        self._buffers = buffers

    def load(self) -> Call:
        """In the rank: take everything out. Works once."""
        global _claimed
        _, _claimed = self._claims.load()
        try:
            fn, args = self._call.load(self._buffers.load())
        finally:
            _claimed = []
        return fn, args

    def close(self) -> None:
        """In the parent, when the ranks have been started; twice is fine."""
        for part in (self._call, self._claims, self._buffers):
            part.close()


def payloads(fn: Callable[..., Any], args: tuple[Any, ...], count: int, start_method: str) -> list[Source]:
    """
    A payload for each of *count* ranks. `fn` and *args* are pickled once where that may be unpickled more than once.
    """
    if start_method == "fork":
        return [Here(fn, args)] * count
    # Late, as every rank imports this module.
    from mp_core._children import inherited
    from mp_spawn.aside import Aside

    kinds = ", ".join(type(arg).__name__ for arg in args)
    what = f"fn={getattr(fn, '__qualname__', fn)!s} with args of ({kinds})"
    made: list[Source] = []
    with ExitStack() as on_failure:
        while len(made) < count:
            with _Part.beginning() as call:
                data, aside = pickled((fn, args), what, start_method, lambda: Aside(_numbered))
                call.end(data)
            on_failure.callback(call.close)
            buffers = Buffers(aside.buffers)
            on_failure.callback(buffers.close)
            for _ in range(count if aside.many else 1):
                if not made or aside.claims:
                    with _Part.beginning() as claims:
                        claims.end(plainly((_Greeting(inherited()), aside.claims)))
                    on_failure.callback(claims.close)
                made.append(Payload(call, claims, buffers))
        on_failure.pop_all()
    return made


class _Greeting:
    """First of what a rank unpickles: it comes into the parent's family, whose memory it will meet."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def __reduce__(self) -> tuple[Any, ...]:
        from mp_core._children import attach

        return (attach, tuple(self._family)) if self._family is not None else (tuple, ())


# In a rank, while its payload is unpickled: the descriptors and the claims that the numbers in it stand for.
_arrived: list[int] = []
_claimed: list[Any] = []


def _numbered(index: int) -> tuple[Any, ...]:
    return _claim, (index,)


def _claim(index: int) -> Any:
    return _claimed[index]


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

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def duplicate_for_child(self, fd: int) -> int:
        # A duplicate for each use, so that each of those who take it owns a descriptor.
        self._fds.append(os.dup(fd))
        return len(self._fds) - 1


def memory_file(*parts: bytes | memoryview) -> int:
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
