"""A message that nobody reads gives its memory back after the timeout of its sender."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from support.carriers import TIMEOUT
from support.scripts import run_python, run_script, succeeded
from support.sessions import in_flight_bytes
from support.waiting import until

import mp_all as mp

LARGE = 1 << 18


@pytest.fixture(autouse=True)
def no_timeout_afterwards():
    yield
    mp.set_message_timeout(None)


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


def own_timeout(connection) -> None:
    connection.send((mp.get_message_timeout(), np.ones(LARGE)))


def test_an_unread_message_gives_its_memory_back_and_its_receiver_is_told(strategy: str) -> None:
    reader, writer = mp.Pipe(False)
    mp.set_message_timeout(0.3)
    writer.send(np.ones(LARGE))
    assert in_flight() == 8 * LARGE
    assert until(lambda: in_flight() == 0)
    with pytest.raises(mp.ReceiveError, match="set_message_timeout"):
        reader.recv()
    writer.send("the next message arrives")
    assert reader.recv() == "the next message arrives"
    reader.close()
    writer.close()


def test_messages_without_a_timeout_and_small_ones_wait_for_their_reader(strategy: str) -> None:
    reader, writer = mp.Pipe(False)
    writer.send(np.ones(LARGE))
    mp.set_message_timeout(0.1)
    writer.send(np.arange(10))
    writer.send(np.zeros(LARGE))
    assert until(lambda: in_flight() == 8 * LARGE)
    assert reader.recv().sum() == LARGE
    assert reader.recv().tolist() == list(range(10))
    with pytest.raises(mp.ReceiveError):
        reader.recv()
    reader.close()
    writer.close()


def test_an_array_that_its_sender_keeps_stays(strategy: str) -> None:
    reader, writer = mp.Pipe(False)
    mp.set_message_timeout(0.1)
    kept = mp.shared.zeros(LARGE)
    writer.send(kept)
    time.sleep(0.5)
    kept += 1
    with pytest.raises(mp.ReceiveError):
        reader.recv()
    assert kept.sum() == LARGE
    del kept
    assert until(lambda: in_flight() == 0)
    reader.close()
    writer.close()


def test_children_inherit_the_timeout_and_their_messages_expire(ctx, strategy: str) -> None:
    reader, writer = ctx.Pipe(False)
    mp.set_message_timeout(30)
    process = ctx.Process(target=own_timeout, args=(writer,))
    process.start()
    seconds, array = reader.recv()
    assert (seconds, array.sum()) == (30.0, LARGE)
    process.join(TIMEOUT)
    process.close()
    reader.close()
    writer.close()


def test_a_lock_does_not_expire(strategy: str) -> None:
    lock, event = mp.Lock(), mp.Event()
    mp.set_message_timeout(0.1)
    process = mp.get_context("spawn").Process(target=use, args=(lock, event))
    process.start()
    assert event.wait(TIMEOUT)
    process.join(TIMEOUT)
    assert process.exitcode == 0
    process.close()


def use(lock, event) -> None:
    with lock:
        event.set()


def killed_after_sending(connection) -> None:
    mp.set_message_timeout(0.3)
    connection.send(np.ones(LARGE))
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_message_of_a_killed_process_expires(ctx, strategy: str) -> None:
    kept = mp.shared.zeros(LARGE)  # the session goes on
    reader, writer = ctx.Pipe(False)
    process = ctx.Process(target=killed_after_sending, args=(writer,))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == -signal.SIGKILL
    assert until(lambda: in_flight_bytes() == 0)
    with pytest.raises(mp.ReceiveError):
        reader.recv()
    del kept
    process.close()
    reader.close()
    writer.close()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_timeout_that_is_no_positive_number_is_refused(seconds: object) -> None:
    with pytest.raises(ValueError):
        mp.set_message_timeout(seconds)  # type: ignore[arg-type]
    assert mp.get_message_timeout() is None


def test_the_environment_sets_it_for_a_program(tmp_path) -> None:
    program = "import mp_all as mp; print(mp.get_message_timeout())"
    assert succeeded(run_script(tmp_path, program, MP_MESSAGE_TIMEOUT="1.5")) == "1.5\n"
    done = run_python("-c", program, MP_MESSAGE_TIMEOUT="soon")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: MP_MESSAGE_TIMEOUT: 'soon' is not a number of seconds above 0")
