"""Errors on receiving are ReceiveErrors, never the end of a pipe, and leave no memory in flight."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.unreceivable import Fails, refuse_blocks

import mp_all as mp


def channel(kind: str) -> tuple[Callable[[Any], None], Callable[[], Any], list[Any]]:
    """Return a function that sends, one that receives, and what to close."""
    if kind == "pipe":
        reader, writer = mp.Pipe(False)
        return writer.send, reader.recv, [reader, writer]
    queue: Any = mp.SimpleQueue() if kind == "simple queue" else mp.Queue()
    return queue.put, queue.get, [queue]


def close(things: list[Any]) -> None:
    for thing in things:
        thing.close()
        if hasattr(thing, "join_thread"):
            thing.join_thread()


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


@pytest.fixture(params=[errno.EMFILE, errno.ETIMEDOUT, errno.EUSERS], ids=["descriptors", "manager", "slots"])
def fault(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("kind", ["pipe", "simple queue", "queue"])
@pytest.mark.parametrize(
    "error", [OSError(24, "no descriptor"), EOFError("nothing left"), FileNotFoundError(2, "gone")]
)
def test_a_system_error_while_unpickling_does_not_end_the_pipe(kind: str, error: Exception) -> None:
    put, get, things = channel(kind)
    put(Fails(error))
    with pytest.raises(mp.ReceiveError, match=type(error).__name__) as caught:
        get()
    assert not isinstance(caught.value, OSError | EOFError)
    assert type(caught.value.__cause__) is type(error)
    assert caught.value.errno == getattr(error, "errno", None)
    put("next")
    assert get() == "next"
    close(things)


class Held:
    """Something that a caller has in a local variable."""


def call_with_local(function: Callable[..., Any], *args: Any) -> weakref.ref[Held]:
    """Have *function* raise; return what refers to a local variable of a caller of it."""

    def caller(references: list[weakref.ref[Held]]) -> None:
        held = Held()
        references.append(weakref.ref(held))
        function(*args)

    references: list[weakref.ref[Held]] = []
    with suppress(Exception):
        caller(references)
    return references[0]


def fail(kind: type[Exception]) -> None:
    raise kind(24, "no descriptor")


class FailsWith:
    """Its unpickling raises such an exception."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return fail, (self.kind,)


@pytest.mark.parametrize("kind", ["pipe", "simple queue", "queue"])
@pytest.mark.parametrize("error", [OSError, EOFError, KeyError])
def test_a_message_that_fails_keeps_no_frame_of_its_receiver(kind: str, error: type[Exception]) -> None:
    put, get, things = channel(kind)
    put(FailsWith(error))
    gc.disable()
    try:
        assert call_with_local(get)() is None
    finally:
        gc.enable()
    close(things)


def test_other_errors_of_unpickling_do_not_change() -> None:
    with pytest.raises(KeyError, match="mine"):
        ForkingPickler.loads(ForkingPickler.dumps(Fails(KeyError("mine"))))


def test_the_end_of_a_pipe_is_still_an_eof_error() -> None:
    reader, writer = mp.Pipe(False)
    writer.close()
    with pytest.raises(EOFError):
        reader.recv()
    reader.close()


def test_a_receive_error_can_be_pickled_with_its_number_and_cause() -> None:
    error = pickle.loads(pickle.dumps(mp.ReceiveError("why", errno.EMFILE)))
    assert (type(error), str(error), error.errno) == (mp.ReceiveError, "why", errno.EMFILE)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == errno.EMFILE


def test_options_of_pickle_are_passed_on() -> None:
    assert ForkingPickler.loads(b"\x80\x02U\x01\xe4.", encoding="latin-1") == "ä"
    with pytest.raises(TypeError):
        ForkingPickler.loads()


@pytest.mark.parametrize("make", [mp.Block, mp.shared.zeros], ids=["block", "array"])
def test_shared_memory_that_cannot_be_attached_says_why_and_leaks_nothing(strategy: str, fault: int, make: Any) -> None:
    thing = make(100_000)
    message = ForkingPickler.dumps(thing)
    assert in_flight() >= 100_000
    refuse_blocks(fault)
    try:
        with pytest.raises(mp.ReceiveError, match="cannot receive a block") as caught:
            ForkingPickler.loads(message)
    finally:
        refuse_blocks(0)
    assert caught.value.errno == fault
    assert in_flight() == 0


def test_a_handle_used_again_says_so() -> None:
    message = ForkingPickler.dumps(mp.Block(100))
    ForkingPickler.loads(message)
    with pytest.raises(mp.ReceiveError, match="used before") as caught:
        ForkingPickler.loads(message)
    assert caught.value.errno == errno.ESTALE


def test_a_receiver_that_cannot_reach_the_senders_folder_says_so(tmp_path: Path) -> None:
    message = bytes(ForkingPickler.dumps(mp.shared.zeros(100_000)))
    program = "import sys, mp_all\nmp_all.reduction.ForkingPickler.loads(sys.stdin.buffer.read())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=message,
        capture_output=True,
        env=os.environ | {"MPSHM_RUNTIME_DIR": str(tmp_path)},
        timeout=60,
    )
    last = done.stderr.decode().splitlines()[-1]
    assert "ReceiveError" in last
    assert f"no folder {message[message.index(b'C8') + 2 :][:16].hex()} in {tmp_path}" in last
    assert "used before" not in last
    ForkingPickler.loads(message)


def test_a_message_that_fails_frees_all_its_memory(strategy: str) -> None:
    parts = [mp.shared.zeros(100_000), mp.Block(70_000), np.zeros(200_000), np.zeros((300, 300)).T, np.zeros(9)[::2]]
    for place in range(len(parts) + 1):
        message = ForkingPickler.dumps([*parts[:place], Fails(KeyError("here")), *parts[place:]])
        assert in_flight() > 0
        with pytest.raises(KeyError):
            ForkingPickler.loads(message)
        assert in_flight() == 0, place


class Offers:
    """Offers pickle an out-of-band buffer."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def __reduce_ex__(self, protocol: int) -> Any:
        return bytearray, (pickle.PickleBuffer(self.data),)


def test_out_of_band_buffers_of_a_message_that_fails_are_freed(strategy: str) -> None:
    message = ForkingPickler.dumps([Offers(bytes(100_000)), np.zeros(100_000), Fails(KeyError("here"))])
    assert in_flight() > 0
    with pytest.raises(KeyError):
        ForkingPickler.loads(message)
    assert in_flight() == 0


later: list[bytes] = []


class SendsAgain:
    """Sends the block before it in the message once more while it is received."""

    def __reduce__(self) -> Any:
        return _send_again, ()


def _send_again() -> None:
    later.append(bytes(ForkingPickler.dumps(block)))
    raise KeyError("here")


block: Any = None


def test_a_message_that_fails_frees_nothing_of_a_later_one(strategy: str) -> None:
    global block
    block = mp.Block(1000)
    try:
        # Enough of them for the same bit of the block to stand for both messages in some round.
        for _ in range(130):
            with pytest.raises(KeyError):
                ForkingPickler.loads(ForkingPickler.dumps([block, SendsAgain()]))
            assert ForkingPickler.loads(later.pop()).nbytes == 1000
    finally:
        block = None


def test_a_hundred_blocks_before_the_error_are_remembered(strategy: str) -> None:
    global block
    block = mp.Block(1000)
    others = [mp.Block(100) for _ in range(100)]
    try:
        for _ in range(70):
            with pytest.raises(KeyError):
                ForkingPickler.loads(ForkingPickler.dumps([*others, block, SendsAgain()]))
            ForkingPickler.loads(later.pop())
    finally:
        block = None
    assert in_flight() == 0
