"""Run a peer in a process of its own, and do work there.

    the table  --pipe-->  driver (one for each peer)  --the peer's own way-->  the process that answers

A driver receives functions, calls them with its `Stage`, and sends back their results. Every wait has a
limit; at the limit, or at the end of the table, the driver and the process that answers end.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, Peer
from benchmarks.peers.base import STOP_WITHIN_S, Ask

START_WITHIN_S = 120


class Stage:
    """The means of work in a driver: the peer, its spawn context, and a process that answers."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.context: SpawnContext = peer.mp.get_context("spawn")
        self._ask: Ask | None = None

    def ask(self) -> Ask:
        """Return a function that sends a message to another process and returns the answer; start it if needed."""
        if self._ask is None:
            self._ask = self.peer.connect(self)
        return self._ask

    @contextmanager
    def apart(self) -> Iterator[None]:
        """
        Keep this thread on one core, apart from the process that answers.

        By itself, the kernel puts two processes that wake each other on one core in some runs and on two in
        others, which changes a round trip by a factor of two and more: luck would decide the comparison.
        """
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def start(self, target: Callable[..., None], *args: Any) -> SpawnProcess:
        """Start a child process that dies with this one."""
        child = self.context.Process(target=child_main, args=(target, *args), daemon=True)
        child.start()
        return child

    def close(self) -> None:
        self.peer.close()


def child_main(target: Callable[..., None], *args: Any) -> None:
    die_with_parent()
    target(*args)


def die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def drive(conn: multiprocessing.connection.Connection, name: str) -> None:
    """Serve as the main function of a driver."""
    die_with_parent()
    peer = PEERS[name]()
    try:
        peer.open()
    except Exception as error:  # any error counts as missing, also a build for another NumPy
        conn.send(("missing", str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"))
        return
    conn.send(("ready", peer.version()))
    stage = Stage(peer)
    try:
        while True:
            job = conn.recv()
            if job is None:
                return
            work, args = job
            try:
                conn.send(("done", work(stage, *args)))
            except Exception:
                conn.send(("failed", traceback.format_exc()))
    except EOFError:
        pass
    finally:
        stage.close()


class WorkFailed(Exception):
    """Work in a driver raised, or took too long."""


class Driver:
    """A handle to a driver. `missing` is the reason why there is none."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._conn, theirs = context.Pipe()
        self._process = context.Process(target=drive, args=(theirs, name))
        self._process.start()
        theirs.close()
        status, text = self._answer(START_WITHIN_S)
        self.missing = text if status == "missing" else ""
        self.version = "" if self.missing else text

    def do(self, work: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """Call *work* in the driver with its stage and *args*, and return its result."""
        if self._process.exitcode is not None:
            raise WorkFailed(f"{self.name}: its process has ended")
        self._conn.send((work, args))
        status, result = self._answer(timeout)
        if status == "failed":
            raise WorkFailed(f"{self.name}: {result}")
        return result

    def _answer(self, timeout: float) -> tuple[str, Any]:
        try:
            if self._conn.poll(timeout):
                answer: tuple[str, Any] = self._conn.recv()
                return answer
        except EOFError:
            raise WorkFailed(f"{self.name}: its process has ended") from None
        self._kill()
        raise WorkFailed(f"{self.name}: no answer within {timeout:g} s")

    def _kill(self) -> None:
        """Kill the driver and its descendants; resource trackers stay, and remove the names that they know."""
        pid = self._process.pid
        assert pid is not None
        started = descendants(pid)
        self._process.kill()
        self._process.join()
        for child in started:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        PEERS[self.name].clean_up(pid)

    def close(self) -> None:
        try:
            self._conn.send(None)
        except OSError:
            pass
        self._process.join(2 * STOP_WITHIN_S)
        if self._process.exitcode is None:
            self._kill()
        self._conn.close()


def descendants(pid: int) -> list[int]:
    """Return the descendants of *pid*, without resource trackers."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
        except OSError:  # the process has just ended
            continue
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child)
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"resource_tracker" not in command:
                found.append(child)
    return found
