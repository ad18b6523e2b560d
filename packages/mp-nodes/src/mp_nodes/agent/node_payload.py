"""The shipment: `fn` and its arguments on their way to other machines.

Note [One transfer, one copy a node]
------------------------------------
    driver:  fn, args --pickle--> call        large private arrays --> buffers     shared memory --> blocks
                                   |                    |                               |
    network, once for each node    v                    v                               v
                                   |                    |                               |
    agent:                      memfd  <-- and -->   memfd                        new Blocks of the node
                                   |                    |                               |
    rank:                       unpickles       maps it copy-on-write              attaches to it

The agent unpickles nothing of this, and needs none of the program's modules. It builds the payload of a local rank
(payload.py) around the bytes. A private array is each rank's own, and a shared array is shared among the ranks of one
node. Writes do not cross to other nodes.

Everything else with a reducer of its own that shares something with a process of this machine goes by value, as plain
pickle makes it.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from mp_core import install
from mp_core.children import inheritance
from mp_core.children.main_module import receivers_may_differ
from mp_core.memory.block import Block, allocate
from mp_core.memory.mapped_buffers import laid_out, memory_file
from mp_core.sharing.backend import pickled, share
from mp_core.sharing.strategy import get_sharing_strategy
from mp_core.system import packages
from mp_core.system.fan_out import fan_out_mode
from mp_nodes.agent.mailbox import Mailbox, PostOffice
from mp_nodes.by_value import refuse_what_is_local, without_file
from mp_spawn.calls.payload import (
    Buffers,
    InheritedFd,
    Payload,
    PickledPayload,
    PickleFile,
    collected_fds,
    per_rank_object,
)
from mp_spawn.calls.payloads import attaching
from mp_spawn.calls.pickling import dumps, dumps_plainly, foreign_reducer


class Shipment(NamedTuple):
    """The call, and the sizes of the parts that follow it."""

    call: bytes
    #: The size of each private buffer in bytes, and whether it is read-only.
    buffers: list[tuple[int, bool]]
    #: The size of each block.
    blocks: list[int]
    #: The driver's packages, sharing strategy, and whether it shares; None if it has not installed mp-core.
    inherited: tuple[dict[str, tuple[str, ...]], str, bool] | None
    #: Whether each rank has a mailbox.
    mailbox: bool


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Shipment, list[memoryview]]:
    """Pickle `fn` and *args* for other machines; return that and the bytes that travel beside it."""
    receivers_may_differ()
    kinds = ", ".join(type(arg).__name__ for arg in args)
    what = f"fn={getattr(fn, '__qualname__', fn)!s} with args of ({kinds})"
    # The message is dropped with its references: there is no receiver on this machine.
    found = _ForNodes()
    call = pickled(dumps, (fn, args), what, "", False, found).data
    views = [buffer.raw() for buffer in found.buffers]
    blocks = [memoryview(block).cast("B") for block in found.blocks]
    # Not inherited(), which would attach this process to a session that no rank enters.
    state = packages.registered(), get_sharing_strategy(), bool(share(None))
    inherited = state if packages.is_installed() else None
    sizes = [(view.nbytes, view.readonly) for view in views]
    return Shipment(call, sizes, [view.nbytes for view in blocks], inherited, found.mailbox), [*views, *blocks]


class _ForNodes:
    """Decides what travels beside a pickle that is made for other machines."""

    def __init__(self) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.blocks: list[Block] = []
        self.mailbox = False

    def reduce(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        if isinstance(thing, Block):
            self.blocks.append(thing)
            return per_rank_object, (len(self.blocks) - 1,)
        refuse_what_is_local(thing)
        self.mailbox = self.mailbox or isinstance(thing, Mailbox)
        reducer = foreign_reducer(type(thing))
        if reducer is None:
            return NotImplemented
        plain = without_file(thing)
        if plain is thing and fan_out_mode(reducer, thing) == "by reference":
            reduced = reducer(thing)
            if any(isinstance(part, Block) for part in reduced[1]):
                return reduced
        return plain.__reduce_ex__(5)


class NodePayload:
    """A shipment on its node: the memory for its parts, and the payloads of the ranks."""

    def __init__(self, shipment: Shipment) -> None:
        self._shipment = shipment
        self._spans, end = laid_out(shipment.buffers)
        self._fd = -1
        if shipment.inherited is not None:
            subjects, strategy, sharing = shipment.inherited
            install()
            own = inheritance.inherited()
            assert own is not None
            _, _, session, _, timeout = own
            self._inherited: inheritance.Inherited | None = (subjects, strategy, session, sharing, timeout)
            # The first block starts the session's manager, which removes the session's folder if this agent is killed.
            with suppress(MemoryError, OSError):
                self._first_block = allocate(1, zeroed=False)
        else:
            self._inherited = None
        #: The agent's ends of the ranks' mailboxes.
        self.post_office = PostOffice()
        self._blocks = [allocate(nbytes, zeroed=False) for nbytes in shipment.blocks]
        #: Where the bytes of each part are to be written.
        self.parts: list[memoryview] = []
        if end:
            self._fd = memory_file()
            os.posix_fallocate(self._fd, 0, end)  # now an error, later a SIGBUS
            memory = memoryview(mmap.mmap(self._fd, end))
            self.parts += [memory[start : start + nbytes] for start, nbytes, _ in self._spans]
        else:
            self.parts += [memoryview(bytearray()) for _ in self._spans]
        self.parts += [memoryview(block).cast("B") for block in self._blocks]

    def write(self, part: int, offset: int, data: memoryview) -> None:
        """
        Put bytes into a part.

        Those of a private one pass through its descriptor: the kernel neither zeroes its pages first nor maps them
        here, and the heartbeat gets the interpreter meanwhile.
        """
        if part >= len(self._spans):
            self.parts[part][offset : offset + data.nbytes] = data
            return
        offset += self._spans[part][0]
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def payloads(self, count: int) -> list[Payload]:
        """Return payloads for *count* ranks, all of the same bytes."""
        self.parts.clear()  # filled by now
        call = PickleFile(self._shipment.call, [])
        made: list[Payload] = []
        for _ in range(count):
            with ExitStack() as on_exit, collected_fds() as fds:
                beside: list[Any] = list(self._blocks)
                if self._shipment.mailbox:
                    end = self.post_office.open()
                    on_exit.callback(os.close, end)
                    beside.append(InheritedFd(end))
                own = PickleFile(dumps_plainly((attaching(self._inherited), beside)), fds)
            fd = os.dup(self._fd) if self._fd >= 0 else -1
            made.append(PickledPayload(call, own, Buffers.over(fd, list(self._spans))))
        return made

    def close(self) -> None:
        """Free the memory, as far as no rank uses it, and close the mailboxes. Idempotent."""
        self.post_office.close()
        fd, self._fd = self._fd, -1
        self.parts.clear()
        self._blocks.clear()
        if fd >= 0:
            os.close(fd)
