"""A writer frees what a killed reader has not read, and the reaper what the reader has only taken."""

from __future__ import annotations

import gc
import os
import signal
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from support.waiting import until

import mp_all as mp
from mp_core.installation import contexts

LARGE = 1 << 17


def in_flight() -> int:
    gc.collect()
    return mp.memory_stats()["in_flight_bytes"]


def wait_for_death(reader: Any, writer: Any, ready: Any) -> None:
    writer.close()
    ready.set()
    signal.pause()


class Killer:
    """Kills the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return die, ()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def receive(queue: Any, times: int) -> None:
    for _ in range(times):
        queue.get()


def killed_reader(ctx: Any, reader: Any, writer: Any) -> Any:
    """Return a process that has the reading end."""
    ready = ctx.Event()
    process = ctx.Process(target=wait_for_death, args=(reader, writer, ready))
    process.start()
    ready.wait()
    reader.close()
    return process


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("duplex", [True, False], ids=["duplex", "one way"])
@pytest.mark.parametrize("end", ["close", "send"])
def test_a_writer_frees_what_a_killed_reader_has_not_read(channels: Any, strategy: str, duplex: bool, end: str) -> None:
    before = in_flight()
    reader, writer = channels.Pipe(duplex)
    process = killed_reader(channels, reader, writer)
    for _ in range(4):
        writer.send([np.ones(LARGE), bytes(LARGE)])
    assert in_flight() - before >= 4 * 9 * LARGE
    kill(process)
    if end == "send":
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:  # for a millisecond a send may not see the death
                writer.send(np.ones(LARGE))
        assert until(lambda: in_flight() == before)
    writer.close()
    assert until(lambda: in_flight() == before)


def test_fifty_killed_readers_leave_nothing_in_flight() -> None:
    before, ctx = in_flight(), contexts.default_context.get_context("fork")
    for number in range(50):
        reader, writer = ctx.Pipe(number % 2 == 0)
        process = killed_reader(ctx, reader, writer)
        writer.send(np.ones(LARGE))
        kill(process)
        del reader, writer
    assert until(lambda: in_flight() == before)


def test_a_writer_of_an_ordinary_pipe_frees_them_as_well(strategy: str) -> None:
    before = in_flight()
    reader, writer = connection.Pipe(False)
    process = killed_reader(mp.get_context("fork"), reader, writer)
    for _ in range(4):
        writer.send(np.ones(LARGE))
    assert in_flight() - before == 4 * 8 * LARGE
    kill(process)
    writer.close()
    assert until(lambda: in_flight() == before)


@pytest.mark.parametrize("duplex", [True, False], ids=["duplex", "one way"])
def test_a_writer_that_closes_frees_nothing_that_can_be_read(duplex: bool) -> None:
    before = in_flight()
    reader, writer = mp.Pipe(duplex)
    writer.send(np.full(LARGE, 7))
    writer.close()
    assert reader.recv().sum() == 7 * LARGE
    reader.close()
    assert in_flight() == before


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue", "JoinableQueue"])
@pytest.mark.parametrize("times", [1, 2], ids=["in its first message", "in a later one"])
def test_a_reader_killed_between_the_ring_and_the_block_leaves_nothing(
    channels: Any, strategy: str, kind: str, times: int
) -> None:
    before, queue = in_flight(), getattr(channels, kind)()
    reader = channels.Process(target=receive, args=(queue, times))
    reader.start()
    for _ in range(times - 1):
        queue.put(np.ones(LARGE))
    queue.put([Killer(), np.ones(LARGE), bytes(LARGE), "x" * LARGE])
    reader.join()
    assert reader.exitcode == -signal.SIGKILL
    assert until(lambda: in_flight() == before)
    queue.put(np.full(LARGE, 7))
    assert queue.get().sum() == 7 * LARGE


def test_a_pickle_in_a_message_can_be_unpickled_after_the_message(ctx: Any, strategy: str) -> None:
    """Its handles are noted only until the message is received, and stay in flight."""
    before, queue = in_flight(), ctx.SimpleQueue()
    queue.put(Nested(np.full(LARGE, 7)))
    inner = queue.get()
    assert in_flight() - before == 8 * LARGE
    assert ForkingPickler.loads(inner).sum() == 7 * LARGE
    assert until(lambda: in_flight() == before)


class Nested:
    """Arrives as the pickle of its array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(ForkingPickler.dumps(self.array)),)
