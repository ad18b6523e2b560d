"""Calls to a manager's server pass through channels, and mean what they mean in multiprocessing."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import managers
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import pytest
from support.carriers import TIMEOUT
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_core.channels import manager_channels

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def manager(channels: Any) -> Any:
    with channels.Manager() as manager:
        yield manager
    manager._process.close()  # pytest still refers to the manager while it looks for leaks


def is_over_channel(proxy: Any) -> bool:
    return getattr(proxy._tls.connection, "_channel", None) is not None


def test_the_manager_is_one_of_multiprocessing_and_its_proxies_use_channels(manager: Any) -> None:
    assert isinstance(manager, managers.SyncManager)
    mapping, items = manager.dict(a=1), manager.list([1])
    mapping["b"] = [2]
    items.append({"c": b"x" * 100_000})
    items.append("é" * 100_000)
    assert mapping.copy() == {"a": 1, "b": [2]}
    assert list(items) == [1, {"c": b"x" * 100_000}, "é" * 100_000]
    assert is_over_channel(mapping) and is_over_channel(items)


def test_errors_results_and_nested_proxies_arrive(manager: Any) -> None:
    mapping = manager.dict()
    with pytest.raises(KeyError, match="missing"):
        mapping["missing"]
    mapping["inner"] = manager.list([1, 2])
    mapping["inner"].append(3)
    assert list(mapping["inner"]) == [1, 2, 3]
    queue, names, lock = manager.Queue(), manager.Namespace(), manager.Lock()
    names.x = 5
    with lock:
        queue.put(names.x)
    assert queue.get() == 5
    with pytest.raises(pickle.PicklingError if sys.version_info >= (3, 14) else (AttributeError, pickle.PicklingError)):
        mapping["cannot be pickled"] = lambda: None
    assert mapping.keys() == ["inner"]


def add(mapping: Any, key: int) -> None:
    mapping[key] = mapping["start"] + key
    assert is_over_channel(mapping)


def test_a_proxy_in_another_process_has_a_channel_of_its_own(channels: Any, manager: Any) -> None:
    mapping = manager.dict(start=100)
    processes = [channels.Process(target=add, args=(mapping, key)) for key in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0
    assert mapping.copy() == {"start": 100, 0: 100, 1: 101}


def test_each_thread_has_a_channel_of_its_own(manager: Any) -> None:
    items, found = manager.list(), set()

    def work(number: int) -> None:
        for i in range(50):
            items.append((number, i))
        found.add(id(items._tls.connection))
        gathered.wait()

    gathered = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(found) == 4
    assert sorted(items) == [(number, i) for number in range(4) for i in range(50)]


def test_an_array_travels_through_a_block(manager: Any) -> None:
    items = manager.list()
    shared = mp.shared.zeros(100_000)
    items.append(shared)
    shared[7] = 1
    assert items[0][7] == 1
    before = mp.memory_stats()["copied_bytes"]
    items.append(np.ones(100_000))
    assert mp.memory_stats()["copied_bytes"] - before == 800_000
    items[:] = []
    del items
    gc.collect()


def test_a_client_of_multiprocessing_alone_is_served_through_its_socket(manager: Any) -> None:
    class Plain(managers.SyncManager):
        pass

    mapping = manager.dict(a=1)
    plain = Plain(address=manager.address, authkey=bytes(multiprocessing.current_process().authkey))
    plain.connect()
    proxy = managers.DictProxy(mapping._token, "pickle", authkey=bytes(multiprocessing.current_process().authkey))
    proxy._tls = threading.local()  # this process has a channel to that server
    proxy["b"] = 2
    assert type(proxy._tls.connection) is multiprocessing.connection.Connection
    assert mapping.copy() == {"a": 1, "b": 2}
    proxy._tls.connection.close()


def test_a_client_without_the_key_is_refused(manager: Any) -> None:
    with pytest.raises(multiprocessing.AuthenticationError):
        manager_channels._client(manager.address, authkey=b"another")


@pytest.mark.parametrize("side", ["server", "client"])
def test_where_there_can_be_no_channel_the_socket_stays(
    forking: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    def refuse(kind: Any, fd: int, memory: int, *form: Any) -> int:
        os.close(fd)
        os.close(memory)
        return -errno.EMFILE

    with monkeypatch.context() as patch:
        if side == "server":
            patch.setattr(manager_channels.channel_connections, "make_pair", lambda duplex: None)
        manager = forking.Manager()
    with manager:
        if side == "client":
            monkeypatch.setattr(manager_channels.backend, "open_channel", refuse)
        mapping = manager.dict(a=1)
        mapping["b"] = 2
        assert mapping.copy() == {"a": 1, "b": 2}
        assert not is_over_channel(mapping)


def test_a_killed_server_is_an_end_of_file_or_a_broken_pipe(channels: Any) -> None:
    manager = channels.Manager()
    mapping = manager.dict(a=1)
    assert mapping["a"] == 1
    os.kill(manager._process.pid, signal.SIGKILL)
    manager._process.join(TIMEOUT)
    for _ in range(2):
        with pytest.raises((EOFError, ConnectionResetError, BrokenPipeError)):
            mapping["a"]
    mapping._tls.connection.close()
    del mapping
    manager.shutdown()


def use_and_die(mapping: Any) -> None:
    mapping["used"] = True
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_server_outlives_its_killed_clients(channels: Any, manager: Any) -> None:
    mapping = manager.dict()
    for _ in range(3):
        process = channels.Process(target=use_and_die, args=(mapping,))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode == -signal.SIGKILL
    assert mapping["used"] is True


def wait_and_die(lock: Any, mapping: Any) -> None:
    mapping["ready"] = True
    lock.acquire()


def test_a_client_killed_in_a_call_holds_nobody_up(channels: Any, manager: Any) -> None:
    lock, mapping = manager.Lock(), manager.dict()
    lock.acquire()
    process = channels.Process(target=wait_and_die, args=(lock, mapping))
    process.start()
    while "ready" not in mapping:
        pass
    process.kill()
    process.join(TIMEOUT)
    mapping["after"] = 1
    assert mapping["after"] == 1


def test_managers_of_multiprocessing_and_without_channels_stay_as_they_are(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Manager() as manager:
        mapping = manager.dict(a=1)
        assert mapping["a"] == 1
        assert type(mapping._tls.connection) is multiprocessing.connection.Connection
    text = """
        import mp_all, multiprocessing.connection
        if __name__ == "__main__":
            with mp_all.get_context("fork").Manager() as manager:
                mapping = manager.dict(a=1)
                print(mapping["a"], type(mapping._tls.connection) is multiprocessing.connection.Connection)
    """
    assert succeeded(run_script(tmp_path, text, MP_CHANNEL="0")) == "1 True\n"


class Interrupted(Exception):
    """Raised by the signal handler."""


@pytest.fixture
def interrupting() -> Iterator[Callable[[float], None]]:
    """
    Return a function that has the main thread interrupted by an exception after so many seconds; 0 for not at all.
    """

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: (signal.setitimer(signal.ITIMER_REAL, seconds), None)[1]
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("has_channel", [True, False])
def test_no_call_returns_the_result_of_one_that_a_handler_has_interrupted(
    forking: Any, monkeypatch: pytest.MonkeyPatch, interrupting: Any, has_channel: bool
) -> None:
    with monkeypatch.context() as patch:
        if not has_channel:
            patch.setattr(manager_channels.channel_connections, "make_pair", lambda duplex: None)
        manager = forking.Manager()
    chance, interrupts = random.Random(7), 0
    with manager:
        mapping = manager.dict({number: [number] for number in range(50)})
        for _ in range(300):
            try:
                interrupting(chance.uniform(2e-5, 1e-3))
                for number in range(50):
                    assert mapping[number] == [number]
                interrupting(0)
            except Interrupted:
                interrupts += 1
            interrupting(0)
            assert mapping[7] == [7]
        assert is_over_channel(mapping) is has_channel
    assert interrupts > 0


def test_a_call_that_the_server_is_still_at_holds_no_later_one_up(manager: Any, interrupting: Any) -> None:
    queue, mapping = manager.Queue(), manager.dict(a=1)
    interrupting(0.2)
    with pytest.raises(Interrupted):
        queue.get()
    assert mapping["a"] == 1
    for _ in range(2):  # the server's thread that was left may take one
        queue.put("an item")
    assert queue.get(timeout=TIMEOUT) == "an item"


def test_a_lock_is_released_by_the_thread_of_the_server_that_has_it_after_an_interrupt(
    manager: Any, interrupting: Any
) -> None:
    lock, mapping = manager.RLock(), manager.dict(a=1)
    with pytest.raises(Interrupted), lock:
        interrupting(0.2)
        while True:
            mapping.get("a")
    assert lock.acquire(blocking=False)
    lock.release()


class CannotBeUnpickled:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_request_that_cannot_be_read_is_an_error_of_its_call_alone(manager: Any) -> None:
    mapping = manager.dict(a=1)
    for _ in range(2):
        with pytest.raises(managers.RemoteError, match="no number"):
            mapping["b"] = CannotBeUnpickled()
        assert mapping["a"] == 1


def test_a_large_result_of_an_interrupted_call_holds_no_large_request_up(manager: Any, interrupting: Any) -> None:
    numbers = {number: str(number) * 3 for number in range(100_000)}
    first, second = manager.dict(numbers), manager.dict()
    for seconds in (0.01, 0.03, 0.06):
        interrupting(seconds)
        with suppress(Interrupted):
            for _ in range(100):
                first.copy()
        interrupting(0)
        second.update(numbers)
        assert len(second) == len(numbers)


def test_a_request_that_cannot_be_pickled_leaves_the_thread_of_the_server_and_its_lock(manager: Any) -> None:
    lock, mapping = manager.RLock(), manager.dict()
    for _ in range(3):
        with lock, pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
            mapping["a"] = threading.Lock()
        assert len(mapping) == 0


def test_the_calls_of_a_handler_and_the_one_that_it_has_interrupted_have_their_own_results(manager: Any) -> None:
    queue, mapping, found = manager.Queue(), manager.dict({number: number for number in range(20)}), []
    again = 0.2

    def ask(*_: object) -> None:
        found.append([mapping[number] for number in range(20)])
        signal.setitimer(signal.ITIMER_REAL, again)  # at its end: it must not interrupt itself without end

    before = signal.signal(signal.SIGALRM, ask)
    try:
        for seconds in (0.3, 1.5):  # the handler comes before and after the result
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Empty):
                queue.get(timeout=seconds)
            for number in range(20):
                assert mapping[number] == number
        again = 0.0005  # anywhere in a call
        for _ in range(200):
            assert [mapping[number] for number in range(20)] == list(range(20))
    finally:
        again = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert found and all(each == list(range(20)) for each in found)


class Asks:
    def accept_connection(self) -> str:
        return "a method of the program"


class Named(manager_channels.SyncManager):
    pass


Named.register("Asks", Asks)


def test_a_method_may_have_the_name_of_one_of_the_server(forking: Any) -> None:
    with Named(ctx=forking) as manager:
        asks = manager.Asks()  # type: ignore[attr-defined]
        assert asks.accept_connection() == "a method of the program"
        assert is_over_channel(asks)
