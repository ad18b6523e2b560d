"""Queues over channels: those of multiprocessing, pickled in `put`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import queue as standard
import re
import threading
import time
import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest
from support.scripts import run_script

import mp_all as mp
from mp_core.channels import channel_list, channel_queues

KINDS = ["SimpleQueue", "Queue", "JoinableQueue"]


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, forking: Any) -> Any:
    """
    A queue of each kind.
    """
    queue = getattr(forking, request.param)()
    yield queue
    closed(queue)


def closed(queue: Any) -> None:
    """
    Close a queue and its ends; a Queue that has put nothing would keep them until it is collected.
    """
    queue.close()
    if hasattr(queue, "join_thread"):
        queue.join_thread()
        queue._reader.close()
        queue._writer.close()


def test_a_queue_is_one_of_the_standard_library(queue: Any) -> None:
    kind = getattr(multiprocessing.queues, type(queue).__name__)
    assert isinstance(queue, kind)
    assert type(queue) is not kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(60)
def test_a_child_of_each_start_method_answers(channels: Any, kind: str) -> None:
    requests, answers = getattr(channels, kind)(), getattr(channels, kind)()
    process = channels.Process(target=tasks.echo_queue, args=(requests, answers))
    process.start()
    for message in (1, "two", b"3" * 200_000, np.arange(5), np.ones(100_000)):
        requests.put(message)
        np.testing.assert_array_equal(answers.get(), message)
    requests.put(None)
    process.join()
    assert process.exitcode == 0
    closed(requests)
    closed(answers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(90)
def test_readers_and_writers_lose_nothing_and_double_nothing(channels: Any, kind: str) -> None:
    writers, readers, each = 2, 3, 400
    queue, results = getattr(channels, kind)(), channels.SimpleQueue()
    putting = [channels.Process(target=tasks.put_numbers, args=(queue, i * each, each)) for i in range(writers)]
    getting = [channels.Process(target=tasks.get_until_none, args=(queue, results)) for _ in range(readers)]
    for process in putting + getting:
        process.start()
    for process in putting:
        process.join()
    for _ in range(readers):
        queue.put(None)
    got = [results.get()[1] for _ in range(readers)]
    for process in getting:
        process.join()
    assert sorted(number for part in got for number in part) == list(range(writers * each))
    for part in got:  # each reader sees the messages of one writer in its order
        for i in range(writers):
            mine = [number for number in part if number // each == i]
            assert mine == sorted(mine)
    closed(queue)
    results.close()


def test_a_change_after_put_does_not_change_the_message(forking: Any) -> None:
    queue = forking.Queue()
    for size in (3, 200_000):  # within the ring, and by the feeder thread
        message = [0] * size
        queue.put(message)
        message[0] = 1
        assert queue.get(timeout=30)[0] == 0
    closed(queue)


@pytest.mark.timeout(60)
def test_put_never_waits_for_a_reader_and_nothing_is_reordered(forking: Any) -> None:
    queue = forking.Queue()
    for number in range(3000):
        queue.put((number, b"x" * (number % 1000)))
    assert queue.qsize() == 3000
    assert [queue.get()[0] for _ in range(3000)] == list(range(3000))
    queue.put("after")
    assert queue.get() == "after"
    closed(queue)


def test_small_messages_need_no_feeder_thread(forking: Any) -> None:
    queue = forking.Queue()
    for number in range(100):
        queue.put(number)
    assert queue._thread is None
    assert [queue.get() for _ in range(100)] == list(range(100))
    closed(queue)


@pytest.mark.timeout(60)
def test_messages_of_the_feeder_thread_arrive_after_the_process_has_ended(channels: Any) -> None:
    queue = channels.Queue()
    process = channels.Process(target=tasks.put_numbers, args=(queue, 0, 100_000))
    process.start()
    assert [queue.get() for _ in range(100_000)] == list(range(100_000))
    process.join()
    closed(queue)


def test_a_full_queue_is_full_and_an_empty_one_empty(forking: Any) -> None:
    queue = forking.Queue(2)
    assert queue.empty()
    queue.put(1)
    queue.put(2)
    assert queue.full()
    assert not queue.empty()
    with pytest.raises(standard.Full):
        queue.put(3, timeout=0.01)
    with pytest.raises(standard.Full):
        queue.put(3, timeout=Decimal("0.01"))  # type: ignore[arg-type]
    with pytest.raises(standard.Full):
        queue.put_nowait(3)
    assert (queue.get(), queue.get_nowait()) == (1, 2)
    start = time.monotonic()
    with pytest.raises(standard.Empty):
        queue.get(timeout=0.05)
    assert time.monotonic() - start >= 0.05
    with pytest.raises(standard.Empty):
        queue.get_nowait()
    with pytest.raises(standard.Empty):
        queue.get(timeout=-1)
    closed(queue)


def test_a_closed_queue_says_so(forking: Any) -> None:
    queue = forking.Queue()
    queue.put(1)
    closed(queue)
    with pytest.raises(ValueError, match="is closed"):
        queue.put(1)
    with pytest.raises(ValueError, match="is closed"):
        queue.get()


def test_an_object_that_cannot_be_pickled_is_printed_and_takes_no_place(
    forking: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = forking.Queue(1)
    queue.put(lambda: 0)
    assert "pickle" in capfd.readouterr().err
    queue.put("next")
    assert queue.get(timeout=10) == "next"
    closed(queue)


def test_a_subclass_handles_errors_of_pickling(forking: Any) -> None:
    handled = []

    class Careful(channel_queues.Queue):
        def _on_queue_feeder_error(self, error: Exception, obj: Any) -> None:
            handled.append((error, obj))

    reader, writer = forking.Pipe(False)
    queue = Careful((reader, writer))
    queue.put(unpicklable := lambda: 0)
    assert handled[0][1] is unpicklable
    closed(queue)


def test_a_closed_queue_of_a_subclass_that_handles_errors_is_freed_with_its_thread(forking: Any) -> None:
    class Careful(channel_queues.Queue):
        def _on_queue_feeder_error(self, error: Exception, obj: Any) -> None:
            raise error

    queue = Careful(forking.Pipe(False))
    count = 0
    while queue._thread is None:
        queue.put(bytes(1000))
        count += 1
    for _ in range(count):
        queue.get()
    closed(queue)
    left = weakref.ref(queue), weakref.ref(queue._thread)
    del queue
    gc.collect()
    assert (left[0](), left[1]()) == (None, None)


def test_a_strict_put_raises_the_error(forking: Any) -> None:
    queue = forking.Queue(1)
    mp.set_strict_put(True)
    try:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            queue.put(lambda: 0)
    finally:
        mp.set_strict_put(False)
    queue.put(1)
    assert queue.get() == 1
    closed(queue)


@pytest.mark.parametrize("way", ["put", "strict put", "aput", "asend", "put that nobody reads"])
def test_an_object_that_cannot_be_sent_keeps_no_frame(
    forking: Any, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(channel_queues, "_strict", way == "strict put")

    def attempt(send: Any, value: Any = lambda: 0) -> weakref.ref[Any]:
        local = threading.Event()
        known = weakref.ref(local)
        with contextlib.suppress(AttributeError, pickle.PicklingError):
            send(value)
        return known

    queue, (reader, writer) = forking.Queue(), forking.Pipe(False)
    gc.disable()
    try:
        if way == "aput":
            known = attempt(lambda value: asyncio.run(queue.aput(value)))
        elif way == "asend":
            known = attempt(lambda value: asyncio.run(writer.asend(value)))
        elif way == "put that nobody reads":
            queue._reader.close()
            known = attempt(queue.put, 1)
        else:
            known = attempt(queue.put)
        gc.collect()  # a loop of asyncio has circles of its own
        assert known() is None
    finally:
        gc.enable()
        for each in (reader, writer):
            each.close()
        closed(queue)


@pytest.mark.timeout(60)
def test_a_joinable_queue_is_joined_when_all_tasks_are_done(channels: Any) -> None:
    queue, ready = channels.JoinableQueue(), channels.Event()
    process = channels.Process(target=tasks.work, args=(queue, ready))
    process.start()
    for number in range(100):
        queue.put(number)
    ready.wait()
    queue.put(None)
    queue.join()
    process.join()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()
    closed(queue)


def test_where_there_can_be_no_ring_queues_are_ordinary_ones(forking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mp_core.sharing import backend

    monkeypatch.setattr(backend, "make_channel", lambda *_: -24)
    made = [forking.SimpleQueue(), forking.Queue(), forking.JoinableQueue()]
    ends = forking.Pipe()
    for queue in made:
        assert type(queue).__module__ == "multiprocessing.queues"
        queue.put(1)
        assert queue.get() == 1
        closed(queue)
    assert type(ends[0]) is multiprocessing.connection.Connection
    for end in ends:
        end.close()


def test_memory_stats_counts_the_ends(forking: Any) -> None:
    before = mp.memory_stats()["channels"]
    reader, writer = forking.Pipe()
    assert mp.memory_stats()["channels"] == before  # there is no ring before the first use
    assert not reader.poll()
    assert mp.memory_stats()["channels"] == before + 2
    reader.close()
    writer.close()
    assert mp.memory_stats()["channels"] == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_has_two_locks_which_it_does_not_use_itself(forking: Any, kind: str) -> None:
    queue = getattr(forking, kind)()
    with queue._rlock, queue._wlock:
        assert not queue._rlock.acquire(block=False)
        assert not queue._wlock.acquire(timeout=0.01)
        queue.put(1)
        assert queue.get() == 1
    assert queue._wlock.acquire()
    queue._wlock.release()
    with pytest.raises(ValueError, match="released too many times"):
        queue._wlock.release()
    with pytest.raises(AttributeError, match="_no_such_lock"):
        queue._no_such_lock  # noqa: B018
    closed(queue)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(60)
def test_a_child_of_each_start_method_has_the_same_locks(channels: Any, kind: str) -> None:
    queue, answer = getattr(channels, kind)(), channels.SimpleQueue()
    process = channels.Process(target=tasks.try_locks, args=(queue, answer))
    process.start()
    with queue._rlock:
        queue.put("go")
        assert answer.get() == (False, True)
    process.join()
    closed(queue)
    closed(answer)


@pytest.mark.timeout(60)
def test_a_program_can_join_a_queue_with_a_timeout_by_the_names_of_the_standard_class(channels: Any) -> None:
    def join(timeout: float) -> bool:
        with queue._cond:
            return queue._unfinished_tasks._semlock._is_zero() or queue._cond.wait(timeout)

    queue, ready = channels.JoinableQueue(8), channels.Event()
    for number in range(3):
        queue.put(number)
    assert (queue._unfinished_tasks.get_value(), queue._sem.get_value()) == (3, 5)
    assert not join(0.01)
    process = channels.Process(target=tasks.work, args=(queue, ready))
    process.start()
    queue.put(None)
    assert join(50)
    process.join()
    assert (queue._unfinished_tasks.get_value(), queue._sem.get_value()) == (0, 8)
    assert queue._unfinished_tasks._semlock._is_zero()
    closed(queue)


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_put_whose_thread_cannot_start_puts_nothing_and_leaves_the_queue_whole(
    forking: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue, big, put = getattr(forking, kind)(100), bytes(1 << 15), 0
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        while True:
            queue.put(big)
            put += 1
    for _ in range(200 - put):  # no place is taken by a message that was not put
        with pytest.raises(RuntimeError, match="can't start new thread"):
            queue.put(big, timeout=0)
    for _ in range(put):
        assert queue.get(timeout=10) == big
        if kind == "JoinableQueue":
            queue.task_done()
    if kind == "JoinableQueue":
        queue.join()
    queue.put(1)
    assert queue.get(timeout=10) == 1
    queue.close()
    queue.join_thread()


ABANDONED = """
    import os, signal, sys, threading, time
    import mp_all as mp

    def put(queue, seconds):
        time.sleep(seconds)
        queue.put(seconds)

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        queue = context.Queue()
        for seconds in (1.5, 0):
            child = context.Process(target=put, args=(queue, seconds))
            child.start()
            print(queue.get())
            child.join()
        signal.signal(signal.SIGALRM, lambda *_: queue.put("from a handler"))
        queue._look_again = 0.0  # the pause between two looks, which is a hundred times as long as a look, is over
        signal.alarm(5)
        print(queue.get())
"""


def test_a_get_that_waits_for_processes_that_have_all_ended_warns(tmp_path: Path, start_method: str) -> None:
    done = run_script(tmp_path, ABANDONED, start_method)
    assert (done.returncode, done.stdout) == (0, "1.5\n0\nfrom a handler\n"), done.stderr
    first, _ = done.stderr.splitlines()
    assert re.match(r"\S+program.py:20: RuntimeWarning: get\(\) waits for ever: no other process has", first)


SLOW_IMPORT = """
    import sys, time
    import mp_all as mp
    from mp_core.channels import channel_queues

    channel_queues._LONG_WAIT_S = 0.01
    if __name__ != "__main__":
        time.sleep(1)

    def put(queue):
        queue.put("imported")

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        queue = context.Queue()
        child = context.Process(target=put, args=(queue,))
        child.start()
        print(queue.get())
        child.join()
"""


def test_no_get_warns_that_waits_for_a_process_which_still_imports(tmp_path: Path, start_method: str) -> None:
    done = run_script(tmp_path, SLOW_IMPORT, start_method)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


LAST = """
    import mp_all as mp
    from mp_core.channels import channel_list, channel_queues

    queue = mp.Queue()

    def is_only_here(*args):
        queue.put("the last")  # as of a process that has ended by the time of the look
        return True

    channel_list.is_only_here = is_only_here
    channel_queues._LONG_WAIT_S = 0.01
    print(queue.get())
"""


def test_no_get_warns_whose_message_came_before_its_sender_ended(tmp_path: Path) -> None:
    done = run_script(tmp_path, LAST)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the last\n", "")


def test_a_get_that_waits_long_looks_at_its_parent_first_and_no_more_when_a_message_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(queue: Any, report: Any) -> None:
        looked: list[int] = []
        memfds_of = channel_list.memfds_of
        monkeypatch.setattr(channel_list, "memfds_of", lambda pid, name: looked.append(pid) or memfds_of(pid, name))
        descriptor = queue._reader._parts()[1]
        is_only_here = channel_list.is_only_here(descriptor, [os.getppid()], lambda: True)
        report.send((is_only_here, looked, os.getppid()))
        looked.clear()
        report.send((channel_list.is_only_here(descriptor, [], lambda: False), looked))

    context = mp.get_context("fork")
    queue, (ours, theirs) = context.Queue(), context.Pipe(False)
    child = context.Process(target=look, args=(queue, theirs))
    child.start()
    assert ours.recv() == (False, [os.getpid()], os.getpid())
    assert ours.recv() == (False, [])
    child.join()
    queue.close()
