"""The task ring between a pool and a worker, or packets where there can be no ring."""

from __future__ import annotations

import _socket
import errno
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.processes import stopped
from support.waiting import until

import mp_all as mp
from mp_core.sharing import backend
from mp_pool.scheduling import workers
from mp_pool.workers import task_rings
from mp_pool.workers.task_rings import TaskSocket, WorkerEnds, make_task_ring

HAS_RINGS = pytest.mark.skipif(not backend.LIBSHM, reason="needs rings, that is, libshm")
KINDS = [
    pytest.param("ring", marks=HAS_RINGS),
    "packets",
    pytest.param("by address", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs abstract addresses")),
]


def without_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_rings.backend, "make_task_ring", lambda: -errno.EMFILE)


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The pool's end of a ring and the worker's."""
    if request.param != "ring":
        without_rings(monkeypatch)
    if request.param == "by address":
        monkeypatch.setattr(task_rings, "socket_pair", task_rings._pair_by_address)
    near = make_task_ring()
    assert isinstance(near, TaskSocket) == (request.param != "ring")
    fd, memory = near.ends()
    far = WorkerEnds(os.dup(fd), memory if memory < 0 else os.dup(memory)).open()
    near.close_ends()
    yield near, far
    near.close()
    far.close()


def test_messages_arrive_whole_and_in_order_in_both_directions(ends: tuple[Any, Any]) -> None:
    near, far = ends
    sizes = [0, 1, 5000, backend.LONGEST]
    for number, size in enumerate(sizes):
        near.send(number, 3, bytes([number]) * size)
        assert far.wait()
        assert far.take() == (number, 3, bytes([number]) * size)
        far.send_all(number, 5, memoryview(bytes(size)))
    assert far.take() is None
    assert near.take_all() == [(number, 5, bytes(size)) for number, size in enumerate(sizes)]
    assert near.take_all() == []


def test_a_send_without_room_or_without_a_reader_sends_nothing(ends: tuple[Any, Any]) -> None:
    near, far = ends
    sent = 0
    while is_sent(near, sent, bytes(30_000)):
        sent += 1
    assert sent > 1
    got = [far.take()[0] for _ in range(sent)]
    assert got == list(range(sent)) and far.take() is None
    assert is_sent(near, 7, b"")
    far.close()
    assert until(lambda: not is_sent(near, 0, b""), tasks.PATIENCE)


def is_sent(ring: Any, number: int, data: bytes) -> bool:
    try:
        ring.send(number, 1, data)
    except BlockingIOError:
        return False
    return True


def test_a_worker_waits_for_room_and_for_a_message(ends: tuple[Any, Any]) -> None:
    near, far = ends
    count = 400

    def answer() -> None:
        while far.wait():
            number, kind, data = far.take()
            far.send_all(number, kind, data)

    thread = threading.Thread(target=answer)
    thread.start()
    sent, got = 0, []
    while len(got) < count:
        while sent < count and is_sent(near, sent, bytes(10_000)):
            sent += 1
        got += [number for number, _, _ in near.take_all()]
    assert got == list(range(count))
    near.close()
    thread.join(tasks.PATIENCE)
    assert not thread.is_alive()


def test_after_the_worker_has_ended_the_pool_has_what_it_did_not_claim(ends: tuple[Any, Any]) -> None:
    near, far = ends
    for number in range(5):
        near.send(number, 0, b"")
    for number in range(2):
        assert far.take() == (number, 0, b"")
        assert far.claim(number)
        far.send_all(number, 0, b"answer")
    far.close()
    assert [number for number, _, _ in near.take_all()] == [0, 1]
    assert near.take_back(5) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs abstract addresses")
def test_another_process_that_connects_first_gets_no_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = _socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    class Listener(_socket.socket):
        def listen(self, *backlog: int) -> None:
            super().listen(*backlog)
            stranger.connect(self.getsockname())

    with monkeypatch.context() as patch:
        patch.setattr(task_rings._socket, "socket", Listener)
        near, far = task_rings._pair_by_address()
    near.send(b"task")
    assert far.recv(10) == b"task"
    assert stranger.recv(10) == b""
    for each in (near, far, stranger):
        each.close()


@HAS_RINGS
def test_a_task_that_was_taken_back_cannot_be_claimed() -> None:
    near = make_task_ring()
    fd, memory = near.ends()
    far = WorkerEnds(os.dup(fd), os.dup(memory)).open()
    assert far.claim(0)
    assert (near.claimed, near.take_back(3)) == (1, 1)
    assert not far.claim(1) and not far.claim(2)
    assert far.claim(3)
    near.close()
    far.close()


@HAS_RINGS
def test_a_worker_takes_four_descriptors_of_the_pool() -> None:
    ctx = mp.get_context("fork")

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with ctx.Pool(1) as pool:
        pool.apply(abs, (1,))
        before = count()
        with ctx.Pool(2) as second, ctx.Pool(5) as third:
            assert second.apply(abs, (-1,)) == third.apply(abs, (-1,))
            assert count() - before <= 2 * 7 + 7 * 4  # each pool has two pipes, a zygote and a file for stacks


# ---- pools without rings ---------------------------------------------------------------------------------------------


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rings(monkeypatch)


@pytest.mark.usefixtures("packets")
def test_a_pool_without_rings_does_the_same(ctx: BaseContext, tmp_path: Path) -> None:
    with ctx.Pool(2) as pool:
        assert pool.map(tasks.square, range(300), chunksize=1) == [n * n for n in range(300)]
        assert pool.apply(tasks.length, (bytes(1_000_000),)) == 1_000_000
        assert pool.apply(tasks.fill, (1_000_000,)) == b"x" * 1_000_000
        assert len(pool.apply(list, (list(range(200_000)),))) == 200_000
        with pytest.raises(mp.WorkerLostError):
            pool.apply(os._exit, (3,))
        assert isinstance(pool._scheduler.dispatcher.workers[0].ring, TaskSocket)
        assert pool.map(tasks.square, range(30)) == [n * n for n in range(30)]


@pytest.mark.usefixtures("packets")
def test_without_rings_only_the_task_is_lost_that_was_begun(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        got, lost = tasks.got_and_lost(pool.imap(end_on_some, range(400)))
        assert [error.index for error in lost] == [7, 77, 277]
        assert got == [n for n in range(400) if n not in (7, 77, 277)]


def end_on_some(number: int) -> int:
    return tasks.end_on(number, 7, 77, 277)


@HAS_RINGS
def test_a_pool_has_no_rings_while_half_of_the_descriptors_are_in_use() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    taken = []
    try:
        while not taken or taken[-1] < 140:
            taken.append(os.dup(0))
        with mp.get_context("fork").Pool(1) as pool:
            assert pool.apply(abs, (-3,)) == 3
            assert isinstance(pool._scheduler.dispatcher.workers[0].ring, TaskSocket)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# ---- a worker that is stopped ----------------------------------------------------------------------------------------


@HAS_RINGS
def test_a_worker_that_continues_begins_no_task_that_was_taken_back(ctx: BaseContext, tmp_path: Path) -> None:
    path = str(tmp_path / "begun")
    with ctx.Pool(2) as pool:
        pool.map(abs, range(100), chunksize=1)
        stopped = pool._scheduler.dispatcher.workers[0]
        stopped.signal(signal.SIGSTOP)
        waits = [pool.apply_async(note, (path, n)) for n in range(50)]
        assert until(lambda: sum(not wait.ready() for wait in waits) <= 1, tasks.PATIENCE)
        stopped.signal(signal.SIGCONT)
        assert sorted(wait.get(tasks.PATIENCE) for wait in waits) == list(range(50))
    assert sorted(map(int, Path(path).read_text().split())) == list(range(50))


@HAS_RINGS
@pytest.mark.parametrize("count", [2, 20])
def test_a_worker_that_was_stopped_before_keeps_no_task(ctx: BaseContext, count: int) -> None:
    with ctx.Pool(2) as pool:
        pool.map(abs, range(100), chunksize=1)
        assert until(lambda: not pool._scheduler.dispatcher.unfinished(), tasks.PATIENCE)
        stopped = pool._scheduler.dispatcher.workers[0]
        stopped.signal(signal.SIGSTOP)
        try:
            assert pool.map_async(tasks.square, range(count), chunksize=1).get(tasks.PATIENCE) == squares(count)
            waits = [pool.apply_async(tasks.square, (n,)) for n in range(count)]
            assert [wait.get(tasks.PATIENCE) for wait in waits] == squares(count)
        finally:
            stopped.signal(signal.SIGCONT)
        assert pool.map(tasks.square, range(50), chunksize=1) == squares(50)


@HAS_RINGS
def test_a_call_that_a_stopped_worker_has_not_begun_can_be_cancelled(ctx: BaseContext) -> None:
    called = []
    with mp.ProcessPoolExecutor(1, mp_context=ctx) as executor:
        list(executor.map(tasks.square, range(30)))
        stopped = executor._scheduler.dispatcher.workers[0]
        stopped.signal(signal.SIGSTOP)
        try:
            futures = [executor.submit(tasks.square, n) for n in range(3)]
            for future in futures:
                future.add_done_callback(called.append)
                assert not future.running()
                assert future.cancel()
                assert future.cancelled()
        finally:
            stopped.signal(signal.SIGCONT)
        assert called == futures
        assert wait(futures, tasks.PATIENCE).not_done == set()
        assert executor.submit(tasks.square, 9).result(tasks.PATIENCE) == 81


def squares(count: int) -> list[int]:
    return [n * n for n in range(count)]


@HAS_RINGS
@pytest.mark.parametrize("ends", ["continues", "is killed"])
def test_arrays_of_tasks_that_were_taken_back_are_whole(ctx: BaseContext, strategy: str, ends: str) -> None:
    with ctx.Pool(2) as pool:
        assert pool.map(total, [np.ones(3)] * 100, chunksize=1) == [3.0] * 100
        stopped = pool._scheduler.dispatcher.workers[0]
        stopped.signal(signal.SIGSTOP)
        waits = [pool.apply_async(total, (np.full(20_000, float(n)),)) for n in range(30)]
        assert until(lambda: sum(not wait.ready() for wait in waits) <= 1, tasks.PATIENCE)
        stopped.signal(signal.SIGCONT if ends == "continues" else signal.SIGKILL)
        answers = [tasks.outcome(lambda wait=wait: wait.get(tasks.PATIENCE)) for wait in waits]
        lost = [answer for answer in answers if isinstance(answer, mp.WorkerLostError)]
        assert len(lost) <= (ends == "is killed")
        assert all(answer in lost or answer == 20_000.0 * n for n, answer in enumerate(answers))
        assert pool.map(total, [np.full(20_000, 2.0)] * 20, chunksize=1) == [40_000.0] * 20
        # It has dropped them unread: their references were another's.
        assert ends == "is killed" or stopped in pool._scheduler.dispatcher.workers


def total(array: np.ndarray) -> float:
    return float(array.sum())


def note(path: str, number: int) -> int:
    with open(path, "a") as file:
        file.write(f"{number}\n")
    return number


@HAS_RINGS
@pytest.mark.parametrize("kind", tasks.KINDS)
def test_a_worker_whose_line_was_full_of_tasks_that_were_taken_back_gets_others(
    kind: str, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tasks.either(kind, ctx, 1) as pool:
        assert pool.submit(tasks.square, 2)() == 4
        dispatcher = pool.pool._scheduler.dispatcher
        (worker,) = dispatcher.workers
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            assert until(lambda: stopped(worker.pid), tasks.PATIENCE)
            worker.window = worker.most  # as after many short tasks: it gets as many at once as fit into its ring
            with monkeypatch.context() as patch:
                patch.setattr(workers, "LONG_TASK", tasks.PATIENCE)  # not before its ring is full
                waits = [pool.submit(tasks.length, b"x" * 3300) for _ in range(2000)]
                assert until(lambda: len(worker.tasks) > 1 and worker not in dispatcher.free, tasks.PATIENCE)
            pool.pool._scheduler.wake()
            # It is recalled after a while, and finds no room for others.
            assert until(lambda: not worker.tasks and worker not in dispatcher.free, tasks.PATIENCE)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert [wait() for wait in waits] == [3300] * 2000
