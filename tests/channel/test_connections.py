"""A connection with a ring is a connection: messages, ends, descriptors, copies, as multiprocessing documents them."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import signal
import threading
from array import array
from multiprocessing import connection as standard
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mp_all as mp
from mp_core.channels.channel_connections import ChannelConnection

LIMIT = 64 << 10  # a message of more passes through the ring in parts


def test_the_ends_are_connections(ends: Any) -> None:
    for end in ends:
        assert type(end) is ChannelConnection
        assert isinstance(end, standard.Connection)


@pytest.mark.parametrize("name", ["send", "recv", "recv_bytes", "poll", "fileno", "close"])
def test_the_methods_have_the_signatures_of_the_standard_ones(ends: Any, name: str) -> None:
    ours, theirs = inspect.signature(getattr(ends[0], name)), inspect.signature(getattr(standard.Connection, name))
    assert [(each.name, each.default) for each in ours.parameters.values()] == [
        (each.name, each.default) for each in list(theirs.parameters.values())[1:]
    ]


def test_the_object_to_send_may_have_its_name(ends: Any) -> None:
    reader, writer = ends
    writer.send(obj="named")
    assert reader.recv() == "named"
    for wrong in (
        lambda: writer.send(),
        lambda: writer.send(1, 2),
        lambda: writer.send(1, obj=2),
        lambda: writer.send(x=1),
    ):
        with pytest.raises(TypeError, match="one argument, obj"):
            wrong()


def test_a_pipe_of_one_way_has_a_reader_and_a_writer(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    with reader, writer:
        assert (reader.readable, reader.writable) == (True, False)
        assert (writer.readable, writer.writable) == (False, True)
        with pytest.raises(OSError, match="write-only"):
            writer.recv()
        with pytest.raises(OSError, match="write-only"):
            writer.poll()
        with pytest.raises(OSError, match="read-only"):
            reader.send(1)
        with pytest.raises(OSError, match="read-only"):
            reader.send_bytes(b"1")


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=3000) | st.integers(0, 40000).map(bytes), max_size=6))
def test_bytes_arrive_in_order_and_are_not_merged(messages: list[bytes]) -> None:
    reader, writer = _pair()
    with reader, writer:
        for message in messages:
            writer.send_bytes(message)
        assert [reader.recv_bytes() for _ in messages] == messages
        assert not reader.poll()


def _pair() -> Any:
    from mp_core.channels import channel_connections as _channels

    return _channels.pipe(True)


@pytest.mark.parametrize(
    "message",
    [None, True, -1, 2**100, 1.5, "text", b"bytes", (), [1, [2, (3,)]], {"a": 1}, list(range(100)), {1, 2}, 1j, len],
)
def test_an_object_arrives_as_it_left(ends: Any, message: Any) -> None:
    reader, writer = ends
    writer.send(message)
    assert reader.recv() == message


def test_a_list_that_contains_itself_arrives(ends: Any) -> None:
    reader, writer = ends
    loop: list[Any] = [1]
    loop.append(loop)
    writer.send(loop)
    got = reader.recv()
    assert got[0] == 1
    assert got[1] is got


def test_an_object_that_cannot_be_pickled_is_the_same_error_and_sends_nothing(ends: Any) -> None:
    reader, writer = ends
    with pytest.raises((AttributeError, pickle.PicklingError)):
        writer.send(lambda: 0)
    assert not reader.poll()


def test_an_array_shares_memory(ends: Any) -> None:
    reader, writer = ends
    sent = mp.shared.ones(100_000)
    writer.send(sent)
    got = reader.recv()
    got[0] = 7
    assert sent[0] == 7


@pytest.mark.parametrize("size", [0, 1, LIMIT, LIMIT + 1, 300_000, 5_000_000])
@pytest.mark.timeout(60)
def test_a_message_of_any_size_arrives(channels: Any, size: int) -> None:
    reader, writer = channels.Pipe(False)
    message = np.random.default_rng(size).bytes(size)
    process = channels.Process(target=tasks.send_all, args=(writer, [message, b"next"]))
    process.start()
    writer.close()
    assert reader.recv_bytes() == message
    assert reader.recv_bytes() == b"next"
    with pytest.raises(EOFError):
        reader.recv_bytes()
    process.join()
    reader.close()


@pytest.mark.timeout(60)
def test_a_child_of_each_start_method_answers(channels: Any) -> None:
    ours, theirs = channels.Pipe()
    process = channels.Process(target=tasks.echo, args=(theirs,))
    process.start()
    theirs.close()
    for message in (1, "two", [3.0], np.arange(4), np.ones(100_000)):
        ours.send(message)
        np.testing.assert_array_equal(ours.recv(), message)
    ours.send(None)
    process.join()
    with pytest.raises(EOFError):
        ours.recv()
    ours.close()


def test_send_bytes_takes_offset_and_size_and_refuses_wrong_ones(ends: Any) -> None:
    reader, writer = ends
    writer.send_bytes(b"0123456789", 2)
    writer.send_bytes(memoryview(b"0123456789"), 2, 3)
    writer.send_bytes(array("i", [1, 2]), 4)
    assert reader.recv_bytes() == b"23456789"
    assert reader.recv_bytes() == b"234"
    assert reader.recv_bytes() == array("i", [2]).tobytes()
    for wrong in ((-1,), (11,), (0, -1), (5, 6)):
        with pytest.raises(ValueError, match=r"negative|length"):
            writer.send_bytes(b"0123456789", *wrong)


def test_recv_bytes_into_fills_a_buffer_from_an_offset(ends: Any) -> None:
    reader, writer = ends
    buffer = bytearray(10)
    writer.send_bytes(b"abc")
    assert reader.recv_bytes_into(buffer) == 3
    writer.send_bytes(b"xyz")
    assert reader.recv_bytes_into(buffer, 5) == 3
    assert bytes(buffer) == b"abc\0\0xyz\0\0"
    writer.send_bytes(b"too long")
    with pytest.raises(mp.BufferTooShort) as error:
        reader.recv_bytes_into(buffer, 5)
    assert error.value.args[0] == b"too long"


@pytest.mark.parametrize("channels_on", [True, False], ids=["ring", "pipe"])
@pytest.mark.parametrize("shape", [(5, 6), (30,), (2, 3, 5), (0, 7), (7, 0), (30, 1)])
def test_recv_bytes_into_fills_a_buffer_of_any_dimensions(ends: Any, channels_on: bool, shape: tuple[int, ...]) -> None:
    reader, writer = ends if channels_on else multiprocessing.connection.Pipe(False)
    sent = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    received = np.full(shape, -1)
    writer.send_bytes(sent.tobytes() if sent.size == 0 else sent)
    assert reader.recv_bytes_into(received) == sent.nbytes
    assert (received == sent).all()
    writer.send_bytes(b"too long" * (sent.size + 1))
    with pytest.raises(mp.BufferTooShort):
        reader.recv_bytes_into(received)
    if sent.ndim > 1 and sent.size:
        writer.send_bytes(b"x" * 8)
        assert reader.recv_bytes_into(received, sent.nbytes - 8) == 8
        assert received.reshape(-1)[-1] == int.from_bytes(b"x" * 8, "little")
    if not channels_on:
        reader.close()
        writer.close()


def test_a_message_longer_than_maxlength_is_an_error_as_before(ends: Any) -> None:
    reader, writer = ends
    writer.send_bytes(b"abcdef")
    with pytest.raises(OSError, match="bad message length"):
        reader.recv_bytes(3)
    with pytest.raises(ValueError, match="negative maxlength"):
        _pair()[0].recv_bytes(-1)


def test_a_closed_connection_says_so(ends: Any) -> None:
    reader, writer = ends
    with writer:
        assert not writer.closed
    assert writer.closed
    writer.close()
    for use in (writer.fileno, writer.recv, writer.poll, lambda: writer.send(1), lambda: writer.send_bytes(b"")):
        with pytest.raises(OSError, match="handle is closed"):
            use()
    assert not reader.closed


def test_a_reader_that_closes_breaks_the_pipe_at_once(ends: Any) -> None:
    reader, writer = ends
    writer.send(1)
    reader.close()
    for message in (1, b"x" * 300_000):
        with pytest.raises(BrokenPipeError):
            writer.send(message)


@pytest.mark.timeout(60)
def test_a_reader_that_is_killed_breaks_the_pipe(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    process = forking.Process(target=signal.pause)
    process.start()
    reader.close()
    writer.send(1)
    process.kill()
    process.join()
    with pytest.raises(BrokenPipeError):
        writer.send(2)
    writer.close()


@pytest.mark.timeout(60)
def test_the_end_comes_with_the_last_duplicate(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    process = forking.Process(target=signal.pause)
    process.start()
    writer.close()
    assert not reader.poll(0.1)
    process.kill()
    assert reader.poll(30)
    with pytest.raises(EOFError):
        reader.recv()
    process.join()
    reader.close()


@pytest.mark.timeout(60)
def test_a_connection_is_sent_through_another(channels: Any) -> None:
    carrier, far = channels.Pipe()
    ours, theirs = channels.Pipe()
    process = channels.Process(target=tasks.receive_connection, args=(far,))
    process.start()
    far.close()
    carrier.send(theirs)
    ours.send("message")
    assert ours.recv() == ("through", "message")
    assert carrier.recv() == "done"
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()
    process.join()
    carrier.close()
    ours.close()


@pytest.mark.timeout(60)
def test_both_ends_go_to_one_child(channels: Any) -> None:
    queue = channels.SimpleQueue()
    answers = channels.SimpleQueue()
    process = channels.Process(target=tasks.echo_queue, args=(queue, answers))
    process.start()
    queue.put(5)
    assert answers.get() == 5
    queue.put(None)
    process.join()
    assert process.exitcode == 0
    queue.close()
    answers.close()


def test_threads_share_a_connection_without_mixing_messages(ends: Any) -> None:
    reader, writer = ends
    each, threads = 500, 4

    def send(first: int) -> None:
        for number in range(first, first + each):
            writer.send((number, "x" * (number % 300)))

    senders = [threading.Thread(target=send, args=(i * each,)) for i in range(threads)]
    for thread in senders:
        thread.start()
    got = [reader.recv() for _ in range(each * threads)]
    for thread in senders:
        thread.join()
    assert sorted(number for number, _ in got) == list(range(each * threads))
    assert all(text == "x" * (number % 300) for number, text in got)


def test_multiprocessings_own_contexts_stay_as_they_are(start_method: str) -> None:
    context = multiprocessing.get_context(start_method)
    ends = context.Pipe()
    queue = context.SimpleQueue()
    assert type(ends[0]) is standard.Connection
    assert type(queue) is multiprocessing.queues.SimpleQueue
    assert type(queue._reader) is standard.Connection
    for end in ends:
        end.close()
    queue.close()
