"""Signal handlers that raise, as for Ctrl-C or a time limit: no message is lost by them, and no place in a queue."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

import pytest

from mp_core.channels import channel_queues

SIZE = 1 << 20
COUNT = 200


class AlarmError(OSError):
    """Like `TimeoutError`, of a kind that a connection raises, too."""


class Alarm(BaseException):
    """Like `KeyboardInterrupt`, no error of pickling."""


@contextmanager
def alarms(kind: type[BaseException]) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise kind

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


armed = [False]


def interrupted(action: Any, seconds: float) -> bool:
    """Call *action* with an alarm after *seconds*; return whether that has ended it."""
    try:
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            action()
        finally:
            armed[0] = False
    except (AlarmError, Alarm):
        return True
    return False


@pytest.mark.parametrize(("kind", "error"), [("a number", AlarmError), ("a number", Alarm), ("a list", Alarm)])
@pytest.mark.parametrize("maxsize", [0, 1000])
@pytest.mark.timeout(120)
def test_an_interrupted_put_sends_its_message_or_not_and_leaves_the_others(
    forking: Any, maxsize: int, kind: str, error: type[BaseException]
) -> None:
    queue = forking.Queue(maxsize)
    chance = random.Random(1)
    sent: set[int] = set()
    interruptions = 0
    with alarms(error):
        for number in range(500):
            message = number if kind == "a number" else [number, {}]
            if interrupted(lambda message=message: queue.put(message, timeout=0.05), chance.uniform(1e-6, 4e-5)):
                interruptions += 1
            else:
                sent.add(number)
            while True:
                try:
                    got = queue.get(timeout=0.001 if number in sent else 0)
                except Empty:
                    break
                sent.discard(got if kind == "a number" else got[0])
    assert interruptions > 10
    assert not sent
    queue.close()
    queue.join_thread()


def send_large(writer: Any) -> None:
    for number in range(COUNT):
        writer.send_bytes(number.to_bytes(4, "little") * (SIZE // 4))


@pytest.mark.timeout(120)
def test_an_interrupted_receiver_gets_whole_messages_in_their_order(forking: Any) -> None:
    reader, writer = forking.Pipe(False)
    process = forking.Process(target=send_large, args=(writer,))
    process.start()
    writer.close()
    got: list[int] = []
    interruptions = 0
    turns = itertools.cycle((0.0005, 0.0005, 0.0))  # the third without an alarm: a busy machine is never in time
    with alarms(AlarmError):
        while True:
            data: list[bytes] = []
            try:
                interruptions += interrupted(lambda data=data: data.append(reader.recv_bytes()), next(turns))
            except EOFError:
                break
            for each in data:
                assert each == each[:4] * (SIZE // 4)
                got.append(int.from_bytes(each[:4], "little"))
    process.join(20)
    assert process.exitcode == 0
    reader.close()
    assert interruptions > 0
    assert got == sorted(set(got))
    assert got


def test_a_large_put_that_is_cut_off_while_its_thread_starts_keeps_no_later_put_waiting(forking: Any) -> None:
    chance, message = random.Random(1), list(range(20_000))
    with alarms(Alarm):
        for _ in range(30):
            queue = forking.Queue()
            for _ in range(5):
                interrupted(lambda queue=queue: queue.put(message), chance.uniform(1e-4, 2e-3))
                with suppress(Empty):
                    while queue.get(timeout=0.01) == message:
                        pass
            queue.put(message)
            assert queue.get(timeout=60) == message
            queue.close()
            queue.join_thread()


def test_no_handler_can_raise_while_the_thread_of_a_queue_starts(forking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(each for each in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, each))
    start = getattr(threading, name)

    def interrupt_main_thread(*args: Any, **kwds: Any) -> None:
        start(*args, **kwds)
        if threading.get_ident() == threading.main_thread().ident:  # another has no Thread, and is to have none
            raise AlarmError

    queue, message = forking.Queue(), list(range(200_000))
    monkeypatch.setattr(threading, name, interrupt_main_thread)
    count = 0
    while queue._thread is None:  # until it is needed
        queue.put(message)
        count += 1
    assert [queue.get(timeout=60) for _ in range(count)] == [message] * count
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("end", ["close", "cancel_join_thread"])
def test_a_queue_is_closed_while_its_thread_starts(forking: Any, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """
    A handler cuts off the wait for the thread, and the program gives up.
    """
    kind, going_on = channel_queues.Queue, threading.Event()
    finish = kind._finish_with_thread

    def finish_later(queue: Any, *args: Any) -> None:
        going_on.wait(60)
        finish(queue, *args)

    monkeypatch.setattr(kind, "_finish_with_thread", finish_later)
    queue, message = forking.Queue(), list(range(200_000))
    with alarms(Alarm):
        while not interrupted(lambda: queue.put(message), 0.05):
            pass
    threading.Timer(0.2, going_on.set).start()
    if end == "cancel_join_thread":
        queue.cancel_join_thread()
    queue.close()
    thread = queue._thread
    queue._reader.close()
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()
