"""A program waits for connections with a ring as for any other: poll, wait, selectors, asyncio, signals, threads."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection as standard
from typing import Any

import channel_tasks as tasks
import pytest

from mp_core.sharing import backend


def test_poll_tells_of_messages_and_of_the_end(ends: Any) -> None:
    reader, writer = ends
    assert not reader.poll()
    assert not reader.poll(0.01)
    assert not reader.poll(-1)
    writer.send(1)
    assert reader.poll()
    assert reader.poll(None)
    assert reader.poll(10)
    assert reader.recv() == 1
    assert not reader.poll()
    writer.close()
    assert reader.poll()
    with pytest.raises(EOFError):
        reader.recv()


@pytest.mark.timeout(60)
def test_wait_and_selectors_see_each_message_and_nothing_else(ends: Any) -> None:
    reader, writer = ends
    for before in range(3):  # messages may have passed before the first selection
        writer.send(before)
        assert reader.recv() == before
    assert standard.wait([reader], 0) == []
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        for count in (1, 2, 5, 1):
            for number in range(count):
                writer.send(number)
            for number in range(count):
                assert standard.wait([reader], 0) == [reader]
                assert len(selector.select(0)) == 1
                assert reader.recv() == number
            assert selector.select(0) == []
            assert standard.wait([reader], 0) == []
        writer.close()
        assert len(selector.select(0)) == 1


@pytest.mark.timeout(60)
def test_messages_that_came_before_the_first_selection_are_seen(ends: Any) -> None:
    reader, writer = ends
    writer.send(1)
    writer.send(2)
    assert reader.recv() == 1
    assert standard.wait([reader], 0) == [reader]
    assert reader.recv() == 2
    assert standard.wait([reader], 0) == []


@pytest.mark.timeout(60)
def test_wait_wakes_for_a_message_of_another_process(channels: Any) -> None:
    ours, theirs = channels.Pipe()
    idle, other = channels.Pipe()
    process = channels.Process(target=tasks.echo, args=(theirs,))
    process.start()
    theirs.close()
    for number in range(200):
        ours.send(number)
        assert standard.wait([ours, idle], 30) == [ours]
        assert ours.recv() == number
    ours.send(None)
    process.join()
    assert standard.wait([ours, idle], 30) == [ours]  # the end of the file
    for end in (ours, idle, other):
        end.close()


@pytest.mark.timeout(60)
def test_asyncio_reads_it(forking: Any) -> None:
    ours, theirs = forking.Pipe()
    process = forking.Process(target=tasks.echo, args=(theirs,))
    process.start()
    got = []

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def readable() -> None:
            got.append(ours.recv())
            done.set()

        loop.add_reader(ours, readable)
        for number in range(50):
            ours.send(number)
            await done.wait()
            done.clear()
        loop.remove_reader(ours)

    asyncio.run(main())
    assert got == list(range(50))
    ours.send(None)
    process.join()
    ours.close()
    theirs.close()


@pytest.mark.timeout(60)
def test_another_thread_may_close_a_connection_that_waits(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    ended = []

    def receive() -> None:
        try:
            reader.recv()
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    reader.close()
    writer.close()
    thread.join(20)
    assert len(ended) <= 1


@contextmanager
def interrupted_by(handler: Callable[..., None], match: str = "by the test") -> Iterator[None]:
    """
    Let a signal call *handler* during the block, which has to end with an error that *match* matches.
    """
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(OSError, match=match):
            yield
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(60)
def test_a_signal_interrupts_a_wait_and_loses_no_message(forking: Any) -> None:
    reader, writer = forking.Pipe(False)

    def interrupt(*_: Any) -> None:
        raise InterruptedError("by the test")

    with interrupted_by(interrupt):
        reader.recv()
    writer.send("later")
    assert reader.recv() == "later"
    reader.close()
    writer.close()


@pytest.mark.timeout(60)
def test_a_message_that_comes_with_the_error_of_a_signal_handler_stays(ends: Any) -> None:
    reader, writer = ends

    def send_and_interrupt(*_: Any) -> None:
        writer.send("during the wait")
        raise InterruptedError("by the test")

    with interrupted_by(send_and_interrupt):
        reader.recv()
    assert reader.poll(10)
    assert reader.recv() == "during the wait"


@pytest.mark.timeout(60)
def test_a_send_that_a_signal_handler_ends_with_an_error_sends_nothing(ends: Any) -> None:
    reader, writer = ends
    sent = 0
    while writer._offer_message(backend.pickled(bytes, 30_000)) is backend.SENT:
        sent += 1

    def make_room_and_interrupt(*_: Any) -> None:
        for _ in range(sent):
            reader.recv_bytes()
        raise InterruptedError("by the test")

    with interrupted_by(make_room_and_interrupt):
        writer.send_bytes(bytes(30_000))
    assert not reader.poll()


@pytest.mark.timeout(60)
def test_a_receive_whose_connection_a_signal_handler_closes_uses_its_number_no_more(ends: Any) -> None:
    reader, _ = ends
    number, (theirs, mine) = reader.fileno(), os.pipe()
    os.write(mine, b"theirs")

    def close_and_open(*_: Any) -> None:
        reader.close()
        os.dup2(theirs, number)

    try:
        with interrupted_by(close_and_open, "handle is closed"):
            reader.recv()
        assert os.read(number, 100) == b"theirs"
    finally:
        for descriptor in {number, theirs, mine}:
            os.close(descriptor)
