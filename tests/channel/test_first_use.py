"""The ring of a pair is made at the first use: exactly one, in time for each process, or none at all."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection as standard
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest
from support.scripts import run_python, succeeded

from mp_core.channels.channel_connections import ChannelConnection
from mp_core.sharing import backend


@pytest.fixture(params=[True, False], ids=["duplex", "one way"])
def pair(request: pytest.FixtureRequest, forking: Any) -> Any:
    """
    The reading and the writing end of a pipe without a ring.
    """
    reader, writer = forking.Pipe(request.param)
    yield reader, writer
    reader.close()
    writer.close()


@contextmanager
def without_descriptors() -> Iterator[None]:
    """
    Let this process open no further descriptor.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def rings() -> int:
    return backend.channel_count() // 2


def refused() -> int:
    return backend.channels_refused()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_pipe_that_is_never_used_takes_two_descriptors(forking: Any) -> None:
    before, had = descriptors(), rings()
    for duplex in (True, False):
        first, second = forking.Pipe(duplex)
        assert type(first) is type(second) is ChannelConnection
        assert descriptors() == before + 2
        assert rings() == had
        first.close()
        second.close()
        assert descriptors() == before
    first, second = forking.Pipe()
    del first, second
    assert descriptors() == before


@pytest.mark.parametrize(
    "use",
    [
        lambda reader, writer: writer.send(1),
        lambda reader, writer: writer.send({1: len}),
        lambda reader, writer: writer.send_bytes(b"1"),
        lambda reader, writer: reader.poll(),
        lambda reader, writer: reader.fileno(),
        lambda reader, writer: standard.wait([reader], 0),
        lambda reader, writer: writer._parts(),
    ],
    ids=["send", "send with a pickler", "send_bytes", "poll", "fileno", "wait", "parts"],
)
def test_each_first_use_makes_one_ring(pair: Any, use: Callable[[Any, Any], Any]) -> None:
    before, had = descriptors(), rings()
    use(*pair)
    assert rings() == had + 1
    use(*pair)
    assert rings() == had + 1
    assert descriptors() <= before + 2  # the ring, and a duplicate for an end that is passed on


def test_the_wrong_direction_of_a_pipe_makes_no_ring(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    had = rings()
    with reader, writer:
        for use in (writer.recv, writer.recv_bytes, writer.poll, lambda: reader.send(1)):
            with pytest.raises(OSError, match="-only"):
                use()
    assert rings() == had


@pytest.mark.timeout(60)
def test_two_threads_that_use_a_pair_first_make_one_ring(forking: Any) -> None:
    for _ in range(300):
        first, second = forking.Pipe()
        had = rings()
        start = threading.Barrier(2)
        got: dict[str, int] = {}

        def use(name: str, end: Any, start: Any = start, got: Any = got) -> None:
            start.wait()
            end.send(name)
            got[name] = end.recv()

        threads = [threading.Thread(target=use, args=item) for item in (("first", first), ("second", second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {"first": "second", "second": "first"}
        assert rings() == had + 1
        first.close()
        second.close()


@pytest.mark.timeout(60)
def test_a_pair_that_is_forked_before_its_first_message_has_one_ring_for_both(pair: Any) -> None:
    reader, writer = pair
    child = os.fork()
    if child == 0:
        writer.send("from the child")
        os._exit(0)
    assert reader.recv() == "from the child"
    os.waitpid(child, 0)
    assert type(reader._parts()) is tuple


@pytest.mark.timeout(60)
def test_a_fork_by_c_code_gives_both_processes_the_ring(pair: Any) -> None:
    reader, writer = pair
    had = rings()
    child = ctypes.PyDLL(None).fork()  # no hook of the interpreter runs
    if child == 0:
        os._exit(rings() - had)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert rings() == had + 1
    writer.send(1)
    assert reader.recv() == 1


@pytest.mark.timeout(120)
def test_threads_that_make_use_and_drop_pairs_while_another_forks_leave_no_pair_between(forking: Any) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                first, second = forking.Pipe()
                third, fourth = forking.Pipe(False)
                first.send(1)
                assert second.recv() == 1
                third.close()  # a child may have it still
                fourth.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(60):
            reader, writer = forking.Pipe()
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # it has no other thread
                writer.send(number)
                os._exit(0)
            assert reader.poll(20)
            assert reader.recv() == number
            os.waitpid(child, 0)
            reader.close()
            writer.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.mark.timeout(60)
def test_an_unused_pair_is_passed_to_a_child_of_each_start_method(channels: Any) -> None:
    ours, theirs = channels.Pipe()
    child = channels.Process(target=tasks.answer_on, args=(theirs,))
    child.start()
    theirs.close()
    ours.send("question")
    assert ours.recv() == ("question", child.pid)
    with pytest.raises(EOFError):
        ours.recv()
    child.join()
    ours.close()


# ---- no ring ----


def test_without_a_descriptor_at_the_first_use_messages_arrive_all_the_same(pair: Any) -> None:
    reader, writer = pair
    had, before = rings(), refused()
    with without_descriptors():
        writer.send("first")
    assert refused() == before + 2
    assert rings() == had
    sent = [1, {"a": [2]}, np.arange(3), np.ones(100_000), None]
    assert reader.recv() == "first"
    for message in sent:
        writer.send(message)
        assert reader.poll(1)
        assert standard.wait([reader], 0) == [reader]
        np.testing.assert_equal(reader.recv(), message)
    assert not reader.poll()
    writer.send_bytes(b"0123", 1, 2)
    assert reader.recv_bytes() == b"12"
    writer.send_bytes(b"abc")
    buffer = bytearray(5)
    assert reader.recv_bytes_into(buffer, 1) == 3
    assert bytes(buffer) == b"\0abc\0"
    writer.send_bytes(b"long")
    assert (reader.fileno(), writer.fileno()) == (reader._handle, writer._handle)
    assert reader._parts() is None
    with pytest.raises(OSError, match="bad message length"):
        reader.recv_bytes(2)


@pytest.mark.parametrize("use", ["recv", "poll"])
@pytest.mark.timeout(60)
def test_a_reader_that_gets_no_ring_reads_from_the_pipe(pair: Any, use: str) -> None:
    reader, writer = pair
    with without_descriptors():
        if use == "poll":
            assert not reader.readable or reader._is_ordinary()
        else:
            thread = threading.Timer(0.1, writer.send, (1,))
            thread.start()
            assert reader.recv() == 1
            thread.join()
    writer.send(2)
    assert reader.poll(5)
    assert reader.recv() == 2


def test_a_pair_without_a_ring_ends_as_an_ordinary_one_and_closes_each_descriptor_once(forking: Any) -> None:
    before = descriptors()
    for duplex in (True, False):
        reader, writer = forking.Pipe(duplex)
        with without_descriptors():
            writer.send(1)
        writer.close()
        assert reader.recv() == 1
        with pytest.raises(EOFError):
            reader.recv()
        kept = os.dup(0)  # the number of the writer: nobody may close it now
        del writer
        os.fstat(kept)
        reader.close()
        os.close(kept)
        reader, writer = forking.Pipe(duplex)
        with without_descriptors():
            writer.send_bytes(b"x" * 1000)
        reader.close()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            writer.send(2)
        del reader, writer
        assert descriptors() == before


@pytest.mark.timeout(60)
def test_a_pair_without_a_ring_is_passed_on_as_an_ordinary_connection(channels: Any) -> None:
    ours, theirs = channels.Pipe()
    with without_descriptors():
        assert not ours._parts()
    child = channels.Process(target=tasks.answer_on, args=(theirs,))
    child.start()
    theirs.close()
    ours.send("question")
    assert ours.recv() == ("question", child.pid)
    with pytest.raises(EOFError):
        ours.recv()
    child.join()
    assert child.exitcode == 0
    ours.close()


def test_a_fork_without_descriptors_leaves_both_processes_an_ordinary_pipe() -> None:
    # A program of its own: libshm spends its reserve of descriptors on such a fork.
    program = """
import os, resource
import mp_all as mp
for duplex in (True, False):
    reader, writer = mp.Pipe(duplex)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    child = os.fork()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if child == 0:
        writer.send("from the child")
        os._exit(0)
    assert reader.recv() == "from the child"
    os.waitpid(child, 0)
    assert reader._parts() is None
assert mp.memory_stats()["channels_refused"] == 4
"""
    succeeded(run_python("-c", program, MP_CHANNEL="1"))


# ---- closed before the first use ----


def test_an_end_that_is_closed_before_the_first_use_is_the_end_for_the_other(forking: Any) -> None:
    had, before = rings(), refused()
    for duplex in (True, False):
        for end_it in (lambda end: end.close(), lambda end: end.__exit__(None, None, None)):
            reader, writer = forking.Pipe(duplex)
            end_it(writer)
            assert reader.poll()
            assert standard.wait([reader], 5) == [reader]
            for receive in (reader.recv, reader.recv_bytes, lambda reader=reader: reader.recv_bytes_into(bytearray(1))):
                with pytest.raises(EOFError):
                    receive()
            reader.close()
            reader, writer = forking.Pipe(duplex)
            end_it(reader)
            for message in (1, [len], b"x" * 300_000):
                with pytest.raises(BrokenPipeError):
                    writer.send(message)
            with pytest.raises(BrokenPipeError):
                writer.send_bytes(b"1")
            writer.close()
    assert (rings(), refused()) == (had, before)


def test_an_end_that_is_dropped_before_the_first_use_is_the_end_for_the_other(forking: Any) -> None:
    reader, writer = forking.Pipe()
    del writer
    with pytest.raises(EOFError):
        reader.recv()
    reader.close()


@pytest.mark.timeout(60)
def test_an_end_whose_other_one_was_closed_can_be_passed_on(channels: Any) -> None:
    reader, writer = channels.Pipe(False)
    writer.close()
    ours, theirs = channels.Pipe()
    child = channels.Process(target=tasks.wait_for_end, args=(reader, theirs))
    child.start()
    assert ours.recv() == "EOFError"
    child.join()
    for end in (reader, ours, theirs):
        end.close()


@pytest.mark.timeout(60)
def test_a_signal_handler_that_raises_at_the_first_use_leaves_a_whole_pair(forking: Any) -> None:
    class AlarmError(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(200):
            reader, writer = forking.Pipe()
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 60))
                writer.send("perhaps")
                signal.setitimer(signal.ITIMER_REAL, 0)
            except AlarmError:
                pass
            writer.send("surely")
            assert reader.recv() in ("perhaps", "surely")
            reader.close()
            writer.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
