"""The payload: `fn` and its arguments, as bytes in a memory file that every rank reads for itself.

Note [Starting ranks in parallel]
---------------------------------
The standard library writes a child's pickle into a pipe, which blocks at 64 KiB until the child has imported
its modules: large arguments start the children one after the other. Here the bytes are in an anonymous file
in memory, and only its descriptor goes through the pipe:

    parent:  fn, args --pickle--> memfd        Process(args=(spec,)) --pickle--> about 200 bytes
                                    |                                                |
    rank:    fn, args <--unpickle-- file  <---------- descriptor --------------------+

Note [Inherited descriptors]
----------------------------
A rank inherits descriptors in one way: as an `InheritedFd` of its `RankSpec`. An `InheritedFd` is pickled by
`multiprocessing.reduction.DupFd`, so that the process being started decides how the descriptor gets there:
with the same number (spawn, the zygote) or over a socket (the fork server).

Descriptors inside the arguments (a queue has two) are collected in a list beside the memory file, and the
pickle refers to them by index. So the bytes are the same for every rank, and are made once. Two more things
are beside them:

    per rank    objects that one receiver may unpickle (a block of shared memory, whose receivers are counted):
                an index in the bytes, and pickled once for each rank
    buffers     out-of-band buffers, the bytes of large private arrays: copied once, into a memory file that every
                rank maps privately, so that each can write to its own array; only pages written to are copied

One exception: a reducer from outside multiprocessing that is not declared for several receivers
(`mp_core.system.fan_out.declare`). Then each rank has a payload of its own; `payloads` decides that.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any, NoReturn

from mp_core.memory.mapped_buffers import ALIGNMENT, Spans, laid_out, map_buffers, memory_file
from mp_core.system.descriptor import Descriptor
from mp_core.system.pickled_call import PickledCall

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# A number that few programs reach for their own files.
HIGH = 500

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class InheritedFd:
    """A descriptor that a process inherits when it is started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        """Return the descriptor, as the objects do that `multiprocessing.reduction.DupFd` makes."""
        return self.fd

    def move_up(self) -> None:
        """
        Give the descriptor a high number, if the limit allows that.

        A program that closes all descriptors, as daemons do, gets low numbers again for the files that it opens then.
        """
        import fcntl
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            moved = fcntl.fcntl(self.fd, fcntl.F_DUPFD_CLOEXEC, min(HIGH, limit - 16) if limit > 0 else HIGH)
        except (OSError, ValueError):
            return
        os.close(self.fd)
        self.fd = moved

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherit, (DupFd(self.fd),)


class OwnedFd(Descriptor, InheritedFd):
    """A descriptor that this process has opened, and closes with the object; a rank may inherit it."""


def open_path(path: str) -> InheritedFd:
    """Open a file that its process has not inherited."""
    return InheritedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))


def _inherit(duplicate: Any) -> InheritedFd:
    return InheritedFd(duplicate.detach())


class Payload:
    """Where a rank finds `fn` and its arguments."""

    #: Whether the rank is a fork of this process.
    forked = False

    @property
    def fds(self) -> list[InheritedFd]:
        """The descriptors that the rank inherits, but for those that a fork or multiprocessing gives it."""
        return []

    def load(self) -> Call:
        """Return `fn` and its arguments, in the rank."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the descriptors, in the parent, once the ranks have been started. Idempotent."""


class ForkedPayload(Payload):
    """`fn` and its arguments for a forked rank, which has them in its memory."""

    forked = True

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call = fn, args

    def load(self) -> Call:
        return self._call


class PlainPayload(Payload):
    """
    `fn` and its arguments in the pickle of the process itself, as multiprocessing sends them, without a descriptor.

    *pickled* makes the pickles, of which the last is that of the call, while multiprocessing starts a process.
    """

    def __init__(self, pickled: Callable[[], list[bytes]]) -> None:
        self._pickled = pickled

    def load(self) -> Call:
        *_, call = map(pickle.loads, self._pickled())
        fn, args = call
        return fn, args

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_payload, (self._pickled(),)


def _plain_payload(pickles: list[bytes]) -> PlainPayload:
    return PlainPayload(lambda: pickles)


class PickleFile:
    """A pickle in a memory file, and the descriptors to which it refers."""

    def __init__(self, data: bytes, fds: list[OwnedFd]) -> None:
        file = OwnedFd()
        self.fds: list[InheritedFd] = [file, *fds]
        file.fd = memory_file(data)

    def load(self, buffers: list[memoryview] | None = None, per_rank: Sequence[Any] = ()) -> Any:
        """Unpickle it, in the rank; works once. *buffers* and *per_rank* are beside it, see the Notes above."""
        file, *fds = self.fds
        self.fds = []
        try:
            with io.BufferedReader(_AtOwnOffset(file.fd)) as reader:
                return _Unpickler(reader, buffers, fds, per_rank).load()
        finally:
            file.close()

    def close(self) -> None:
        """Close the descriptors, in the parent, once the ranks have been started. Idempotent."""
        for each in self.fds:
            each.close()
        self.fds = []


class _AtOwnOffset(io.RawIOBase):
    """Reads the file *fd* from its beginning. It has an offset of its own, since all ranks share the descriptor's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        size = os.preadv(self._fd, [buffer], self._offset)
        self._offset += size
        return size


class _Unpickler(pickle.Unpickler):
    """Resolves `inherited_fd` and `per_rank_object` in a pickle to what is beside it."""

    def __init__(self, file: Any, buffers: Any, fds: Sequence[InheritedFd], per_rank: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._resolved = {inherited_fd.__name__: fds.__getitem__, per_rank_object.__name__: per_rank.__getitem__}

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in self._resolved:
            return self._resolved[name]
        return super().find_class(module, name)


def inherited_fd(index: int) -> NoReturn:
    """Stand in a pickle for the descriptor *index* beside it."""
    raise pickle.UnpicklingError(f"descriptor {index} of a payload cannot be unpickled outside the payload")


def per_rank_object(index: int) -> NoReturn:
    """Stand in a pickle for the object *index* beside it, of which each rank gets one of its own."""
    raise pickle.UnpicklingError(f"object {index} of a payload cannot be unpickled outside the payload")


class Buffers:
    """The bytes of large private arrays, in a memory file that each rank maps for itself."""

    def __init__(self, buffers: list[pickle.PickleBuffer]) -> None:
        views = [buffer.raw() for buffer in buffers]
        self._spans, end = laid_out((view.nbytes, view.readonly) for view in views)
        self._file: OwnedFd | None = None
        # An empty file cannot be mapped.
        if end:
            self._file = file = OwnedFd()
            file.fd = memory_file(*(part for view in views for part in (view, bytes(-view.nbytes % ALIGNMENT))))

    @classmethod
    def over(cls, fd: int, spans: Spans) -> Buffers:
        """Return the buffers that the memory file *fd* holds at *spans*; it owns the descriptor, if that is not -1."""
        self = cls([])
        self._spans = spans
        self._file = OwnedFd(fd) if fd >= 0 else None
        return self

    @property
    def fds(self) -> list[InheritedFd]:
        """The memory file, if there is one."""
        return [] if self._file is None else [self._file]

    def load(self) -> list[memoryview]:
        """Map them, in the rank. The mapping is private: a page is copied when the rank writes to it."""
        found = map_buffers(-1 if self._file is None else self._file.fd, self._spans)
        self.close()
        return found

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


class PickledPayload(Payload):
    """
    `fn` and its arguments for one rank.

    All ranks have the same *call* and *buffers*; *per_rank* is this rank's own.
    """

    def __init__(self, call: PickleFile, per_rank: PickleFile, buffers: Buffers) -> None:
        self._call = call
        self._per_rank = per_rank
        self._buffers = buffers

    @property
    def fds(self) -> list[InheritedFd]:
        return [*self._call.fds, *self._per_rank.fds, *self._buffers.fds]

    def load(self) -> Call:
        """Unpickle `fn` and its arguments, in the rank. Works once."""
        _, per_rank = self._per_rank.load()
        fn, args = self._call.load(self._buffers.load(), per_rank)
        return fn, args

    def close(self) -> None:
        """Close the descriptors, in the parent, once the ranks have been started. Idempotent."""
        for part in (self._call, self._per_rank, self._buffers):
            part.close()


@contextmanager
def spawning(popen: Any) -> Iterator[None]:
    """Pickle for the process *popen*, which is being started: locks and queues refuse to be pickled otherwise."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(popen)
    try:
        yield
    finally:
        context.set_spawning_popen(before)


@contextmanager
def collected_fds() -> Iterator[list[OwnedFd]]:
    """
    Collect the descriptors of everything pickled in the block; the pickle refers to them by index.

    They are closed when the block raises.
    """
    fds: list[OwnedFd] = []
    try:
        with spawning(_Collector(fds)):
            yield fds
    except BaseException:
        for each in fds:
            each.close()
        raise


class _Collector:
    """Stands in for the `Popen` of a process that multiprocessing is starting."""

    def __init__(self, fds: list[OwnedFd]) -> None:
        self._fds = fds

    def duplicate_for_child(self, fd: int) -> int:
        # A duplicate for each use: each object that is unpickled owns its descriptor.
        self._fds.append(OwnedFd())
        self._fds[-1].fd = os.dup(fd)
        return len(self._fds) - 1

    def DupFd(self, index: int) -> PickledCall:
        return PickledCall(inherited_fd, index)
