"""Peer: another process that calls functions on request, and keeps named objects."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import mp_all as mp
import mp_cuda

WAIT_S = 60
KEPT: dict[str, Any] = {}


def serve(connection: Any) -> None:
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            return
        except Exception as error:
            connection.send((False, error))
            continue
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, error
        function = args = None
        try:
            connection.send(answer)
        except Exception as error:
            connection.send((False, error))
        answer = None


class Peer:
    """A child process with a pipe to it."""

    def __init__(self, method: str = "spawn") -> None:
        ctx = mp.get_context(method)
        self.connection, theirs = ctx.Pipe()
        self.process = ctx.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, function: Callable[..., Any], *args: Any) -> None:
        """Call *function* there, without waiting for the answer."""
        self.connection.send((function, args))

    def answer(self) -> Any:
        assert self.connection.poll(WAIT_S), "the other process does not answer"
        fine, value = self.connection.recv()
        if not fine:
            raise value
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call *function* in the other process and return its result."""
        self.begin(function, *args)
        return self.answer()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Let it end normally."""
        self.connection.close()
        self.process.join(WAIT_S)
        assert self.process.exitcode is not None
        self.process.close()


# ---- functions to call -----------------------------------------------------------------------------------------------


def keep(name: str, value: Any) -> None:
    KEPT[name] = value


def give(name: str) -> Any:
    return KEPT[name]


def drop(*names: str) -> None:
    for name in names:
        del KEPT[name]
    gc.collect()
    mp_cuda.ipc_collect()


def clean() -> dict[str, int]:
    from mp_cuda.sharing import ipc_events

    KEPT.clear()
    gc.collect()
    ipc_events.close_all()
    mp_cuda.ipc_collect()
    return mp_cuda.ipc_stats()


def content(name: str) -> bytes:
    return KEPT[name].copy_to_host()


def write(name: str, data: bytes) -> None:
    KEPT[name].copy_from_host(data)


def stats() -> dict[str, int]:
    return mp_cuda.ipc_stats()


def address(name: str) -> int:
    return KEPT[name].ptr


def bytes_of(array: Any) -> bytes:
    return array.copy_to_host()


def send_bytes_of(data: bytes) -> Any:
    return mp_cuda.from_host(data)


def make(name: str, data: bytes) -> Any:
    KEPT[name] = mp_cuda.from_host(data)
    return KEPT[name]


def described(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, str(array.dtype), array.readonly, array.device, array.copy_to_host()


def fail(function: str, code: int, times: int = 1) -> None:
    """Make the next calls of a driver function fail there; only on the stub."""
    import ctypes

    ctypes.CDLL("libcuda.so.1").mpstub_fail(function.encode(), code, ctypes.c_long(times))


def die_in(function: str) -> None:
    """Make this process kill itself in a driver function; only on the stub."""
    import ctypes

    mp_cuda.from_host(b"ready")
    ctypes.CDLL("libcuda.so.1").mpstub_fail(function.encode(), -9, ctypes.c_long(1))


def query(name: str) -> bool:
    return KEPT[name].query()


def record(name: str) -> None:
    KEPT[name].record()
