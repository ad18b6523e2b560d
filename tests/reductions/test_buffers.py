"""Buffers that objects offer to pickle (PickleBuffer) go through shared memory, and nothing else changes."""

from __future__ import annotations

import io
import pickle
import pickletools
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from pickle import PickleBuffer
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier, ProcessCarrier

import mp_all as mp

LARGE = 1 << 17


class Text:
    """Holds a buffer, read-only or not, as Arrow does."""

    def __init__(self, memory: Any) -> None:
        self.memory = memoryview(memory)

    def __reduce_ex__(self, protocol: int) -> tuple:
        if protocol >= 5:
            return Text, (PickleBuffer(self.memory),)
        return Text, (bytes(self.memory),)


class Bytes(bytearray):
    """The class of the standard library's documentation, more or less."""

    def __reduce_ex__(self, protocol: int) -> tuple:
        return (Bytes.from_buffer, (PickleBuffer(self),)) if protocol >= 5 else (Bytes, (bytes(self),))

    @classmethod
    def from_buffer(cls, memory: Any) -> Bytes:
        with memoryview(memory) as view:
            return view.obj if type(view.obj) is cls else cls(view)


class Unpicklable:
    def __reduce__(self) -> tuple:
        raise ValueError("not this one")


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


@pytest.mark.parametrize("memory", [bytes(range(256)) * 512, bytearray(range(256)) * 512], ids=type)
def test_a_large_buffer_is_copied_once_and_arrives_as_writable_as_it_was(carrier: Carrier, memory: Any) -> None:
    before = mp.memory_stats()["copied_bytes"]
    carrier.call(tasks.keep, Text(memory))
    # A forked process has its first arguments without any message.
    inherited = isinstance(carrier, ProcessCarrier) and carrier.ctx.get_start_method() == "fork"
    assert mp.memory_stats()["copied_bytes"] - before == LARGE * (not inherited)
    (received,) = carrier.again(tasks.recall)
    assert received.memory == memory
    assert received.memory.readonly == isinstance(memory, bytes)


def test_a_large_buffer_adds_little_to_the_message(strategy: str) -> None:
    message = ForkingPickler.dumps(Text(bytes(LARGE)))
    assert len(message) < 1000
    assert len(ForkingPickler.loads(message).memory) == LARGE
    assert len(ForkingPickler.dumps([Text(bytes(1000)), 1])) > 1000


def test_a_small_buffer_and_a_message_without_any_are_plain_pickles(strategy: str) -> None:
    for thing in (Text(b"abc"), Text(b""), [1, "text", {2.5}], bytearray(1000)):
        message = bytes(ForkingPickler.dumps(thing))
        names = [name for name, *_ in pickletools.genops(message)]
        assert [op.name for op in names if op.name in ("NEXT_BUFFER", "READONLY_BUFFER")] == []
        assert b"load_with" not in message
    assert bytes(there_and_back(Text(b"abc")).memory) == b"abc"


def test_a_received_buffer_is_sent_on_without_a_copy(echo: Carrier) -> None:
    received = echo.call(tasks.echo, Text(bytes(LARGE)))
    before = mp.memory_stats()["copied_bytes"]
    again = echo.call(tasks.echo, Text(received.memory[10:-10]))
    assert mp.memory_stats()["copied_bytes"] == before
    assert np.shares_memory(np.asarray(again.memory), np.asarray(received.memory))


def test_a_buffer_over_a_shared_array_is_that_array(echo: Carrier) -> None:
    array = mp.shared.zeros(100, "u1")
    received = echo.call(tasks.echo, Text(array[20:40]))
    array[20:40] = 7
    assert bytes(received.memory) == b"\7" * 20


def test_a_class_that_makes_its_own_copy_gets_the_bytes(echo: Carrier) -> None:
    sent = Bytes(range(256)) * 512
    received = echo.call(tasks.echo, Bytes(sent))
    assert (type(received), received) == (Bytes, sent)


def test_buffers_and_arrays_go_in_one_message_each_in_its_place(echo: Carrier) -> None:
    shared, text = mp.shared.zeros(3), Text(b"x" * LARGE)
    sent = [text, shared, {"same": text, "array": shared[1:]}, np.ones(LARGE), Text(b"y" * LARGE)]
    received = echo.call(tasks.echo, sent)
    assert received[2]["same"] is received[0]
    assert np.shares_memory(received[2]["array"], received[1])
    assert (bytes(received[0].memory[:2]), bytes(received[4].memory[:2])) == (b"xx", b"yy")
    assert np.shares_memory(received[1], shared)


def test_a_message_that_fails_after_a_buffer_leaks_no_memory(strategy: str) -> None:
    before = mp.memory_stats()
    with pytest.raises(ValueError, match="not this one"):
        ForkingPickler.dumps([Text(bytes(LARGE)), np.ones(LARGE), Unpicklable()])
    after = mp.memory_stats()
    assert (after["in_flight_bytes"], after["live_bytes"]) == (before["in_flight_bytes"], before["live_bytes"])


def test_a_named_protocol_is_kept_and_pickle_itself_does_not_change(strategy: str) -> None:
    before = mp.memory_stats()["copied_bytes"]
    thing = Text(bytes(LARGE))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        message = bytes(ForkingPickler.dumps(thing, protocol))
        assert len(message) > LARGE
        assert message[1] == protocol
        file = io.BytesIO()
        reduction.dump(thing, file, protocol)
        assert file.getvalue() == message
    assert len(pickle.dumps(thing)) > LARGE
    assert mp.memory_stats()["copied_bytes"] == before


def test_a_pickler_with_a_constructor_of_its_own_is_left_alone(strategy: str) -> None:
    class Own(ForkingPickler):
        def __init__(self, file: Any, protocol: int | None = None) -> None:
            super().__init__(file, protocol)

    assert len(Own.dumps(Text(bytes(LARGE)))) > LARGE


def test_a_place_outside_its_block_is_an_error() -> None:
    from mp_core.messages.pickling import load_with

    for offset, nbytes in ((0, 101), (50, 51), (-1, 5), (100, 1)):
        with pytest.raises(ValueError, match="damaged"):
            load_with(b"", [(mp.Block(100), offset, nbytes, False)])


def test_a_buffer_with_gaps_is_refused_as_pickle_refuses_it() -> None:
    with pytest.raises(pickle.PicklingError, match="non-contiguous"):
        ForkingPickler.dumps(PickleBuffer(memoryview(bytes(10))[::2]))
