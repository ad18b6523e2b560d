"""The descriptors by which a child started by exec attaches to its parent's session: opened once and closed again."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from itertools import count
from multiprocessing import active_children, connection, forkserver, popen_fork, popen_forkserver
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_core.children import child_descriptors, main_module, one_reader
from mp_core.sharing import backend

WAIT_S = 60
F = mp.reduction.ForkingPickler


BY_EXEC = pytest.mark.parametrize("start_method", ["spawn", "forkserver"])


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    original = backend.open_descriptors_for_child
    monkeypatch.setattr(backend, "open_descriptors_for_child", lambda: calls.append(original()) or calls[-1])
    return calls


def total(*queues: Any) -> None:
    queues[-1].put(float(queues[0].get().sum()))


def run(ctx: Any, count: int) -> float:
    """Return the sum of a shared array, computed by a child with *count* queues of two connections each."""
    queues = [ctx.SimpleQueue() for _ in range(count)]
    child = ctx.Process(target=total, args=queues)
    child.start()
    queues[0].put(mp.shared.ones(1000))
    answer = queues[-1].get()
    child.join(WAIT_S)
    assert child.exitcode == 0
    child.close()
    for queue in queues:
        queue.close()
    return float(answer)


@BY_EXEC
def test_descriptors_are_opened_once_for_a_child_and_closed_when_it_has_started(
    ctx: Any, strategy: str, descriptors: list[Any]
) -> None:
    mp.Block(1)
    for number in range(1, 4):
        assert run(ctx, 5) == 1000
        assert len(descriptors) == number
        for fd in descriptors[-1]:
            if fd >= 0:
                with pytest.raises(OSError, match="descriptor"):
                    os.fstat(fd)
    assert descriptors[0][0] >= 0


class NotPicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@BY_EXEC
def test_they_are_closed_when_the_child_cannot_be_started(ctx: Any, strategy: str, descriptors: list[Any]) -> None:
    reader, writer = ctx.Pipe()
    with pytest.raises(TypeError, match="not this one"):
        ctx.Process(target=total, args=(reader, NotPicklable())).start()
    assert len(descriptors) == 1
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptors[0][0])
    reader.close()
    writer.close()


@BY_EXEC
def test_a_child_without_descriptors_gets_the_id_alone(
    ctx: Any, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "open_descriptors_for_child", lambda: (-1, -1))
    assert run(ctx, 2) == 1000


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("start_method", ["forkserver"])
def test_a_fork_server_at_its_limit_of_descriptors_gets_none_of_ours(
    ctx: Any, strategy: str, descriptors: list[Any], spare: int
) -> None:
    # A pipe's two ends, as often as a fork server takes descriptors for a child.
    limit = child_descriptors.FORKSERVER_TAKES - spare
    pipes = [connection.Pipe(False) for _ in range((limit + 1) // 2)]  # without rings: those are passed in a socket
    ends = [end for pipe in pipes for end in pipe][:limit]
    array = mp.shared.ones(100)
    child = ctx.Process(target=answer, args=(ends, array))
    child.start()
    assert pipes[0][0].recv() == (limit, 100.0)
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert len(descriptors) == 1
    # The in-flight references of the first try were discarded.
    assert mp.memory_stats()["in_flight_bytes"] == 0
    for pipe in pipes:
        for end in pipe:
            end.close()


def answer(ends: list[Any], array: Any) -> None:
    ends[1].send((len(ends), float(array.sum())))


def test_a_connection_sent_to_a_running_child_carries_none(descriptors: list[Any]) -> None:
    first, second = mp.Pipe()
    message = F.dumps(first)
    assert descriptors == []
    again = F.loads(message)
    again.close()
    first.close()
    second.close()


PRELOADED = """
    import mp_all as mp
    from mp_core.sharing import backend

    def tell(queue):
        queue.put(backend.own_session())

    if __name__ == "__main__":
        ctx = mp.get_context("forkserver")
        ctx.set_forkserver_preload(["mp_all"])
        queue = ctx.SimpleQueue()
        for _ in range(2):
            child = ctx.Process(target=tell, args=(queue,))
            child.start()
            print(queue.get() == backend.own_session())
            child.join()
"""


def test_children_of_a_fork_server_that_has_loaded_us_share_in_their_starters_session(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, PRELOADED)) == "True\nTrue\n"


def end_with_its_length(data: bytes) -> None:
    os._exit(len(data) % 256)


def test_threads_may_list_children_at_any_time_and_each_exit_code_is_the_childs(start_method: str) -> None:
    ctx = mp.get_context(start_method)
    ended, problems = threading.Event(), list[Any]()

    def list_children() -> None:
        while not ended.is_set():
            try:
                active_children()
            except Exception as error:
                problems.append(error)

    threads = [threading.Thread(target=list_children) for _ in range(3)]
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(5):
            children = [ctx.Process(target=end_with_its_length, args=(bytes(200_000),)) for _ in range(4)]
            for child in children:
                child.start()
            for number, child in enumerate(children):
                child.join(WAIT_S if number % 2 else None)
                if child.exitcode != 200_000 % 256:
                    problems.append(child)
    finally:
        sys.setswitchinterval(switches)
        ended.set()
        for thread in threads:
            thread.join()
    assert problems == []


def test_a_process_that_is_forked_while_threads_ask_for_a_child_may_ask_for_it_too(start_method: str) -> None:
    child = mp.get_context(start_method).Process(target=signal.pause)
    child.start()
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            child._popen.poll()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=ask) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(WAIT_S)
                child._popen.poll()  # type: ignore[attr-defined]
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        child.kill()
        child.join(WAIT_S)
    assert child.exitcode == -signal.SIGKILL


class HandlerError(Exception):
    """A signal handler has raised."""


@BY_EXEC
@pytest.mark.parametrize("fill", [bytes, mp.shared.zeros], ids=["bytes", "array"])
def test_a_handler_that_raises_anywhere_in_a_poll_loses_no_exit_code_and_leaves_no_arguments_behind(
    start_method: str, fill: Any
) -> None:
    polling = {main_module, child_descriptors, one_reader, popen_fork, popen_forkserver, forkserver}
    files = {module.__file__ for module in polling}

    def raising_at(line: int) -> Any:
        lines = count()

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            # No handler runs between the end of a block and the `release` of its lock; `with` releases in its own line.
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            is_end = re.search(r"return|release|with _lock", text)
            if event == "line" and not is_end and next(lines) == line:
                raise HandlerError
            return trace

        return trace

    child = mp.get_context(start_method).Process(target=len, args=(fill(3_000_000),))
    child.start()
    os.kill(child.pid or 0, signal.SIGSTOP)
    before = sys.gettrace()
    try:
        for killed in (False, True):
            if killed:
                child.kill()
                assert connection.wait([child.sentinel], WAIT_S)
                with suppress(ChildProcessError):  # of a fork server
                    os.waitid(os.P_PID, child.pid or 0, os.WEXITED | os.WNOWAIT)  # it closes its pipe before it ends
            for line in count():
                sys.settrace(raising_at(line))
                try:
                    is_alive = child.is_alive()
                except HandlerError:
                    continue
                finally:
                    sys.settrace(before)
                break
            assert line > 4 and is_alive is not killed
    finally:
        child.kill()
        child.join(WAIT_S)
    assert child.exitcode == -signal.SIGKILL
    assert child._popen.arguments is None  # type: ignore[attr-defined]
    assert not one_reader._lock._is_owned()  # type: ignore[attr-defined]
    child.close()


@BY_EXEC
def test_a_child_that_dies_before_it_takes_its_arguments_keeps_no_start_waiting(
    tmp_path: Path, start_method: str
) -> None:
    program = """
        import os, sys
        import mp_all as mp

        if __name__ == "__mp_main__":
            raise ImportError("of the main module")
        if __name__ == "__main__":
            arguments = mp.shared.zeros(1000), [os.urandom(1000) for _ in range(30_000)]
            child = mp.get_context(sys.argv[1]).Process(target=print, args=arguments)
            child.start()
            child.join()
            print(child.exitcode)
    """
    assert run_script(tmp_path, program, start_method).stdout == "1\n"
