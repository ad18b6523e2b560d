"""Functions that ranks run: pickled by name, so they stand at top level and import little."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, NoReturn

# Longer than any test: what should be ended does not end by itself.
LONG = 300


class Odd(Exception):
    """Can be pickled, with an attribute."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class CannotBePickled(Exception):
    def __init__(self) -> None:
        super().__init__("held together by a lambda")
        self.thing = lambda: None


class CannotBeMadeAgain(Exception):
    """Its pickle calls it with one argument too few."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


class CannotArrive:
    """Is pickled well, and explodes when it is unpickled."""

    def __reduce__(self) -> Any:
        return explode, ("on arrival",)


def explode(text: str) -> NoReturn:
    raise ValueError(text)


def nothing(rank: int, *args: Any) -> None:
    pass


def give_back(rank: int, *args: Any) -> tuple[Any, ...]:
    return rank, *args


def sleep(rank: int, *args: Any) -> None:
    time.sleep(LONG)


def tell(rank: int, connection: Connection, what: Any = None) -> None:
    connection.send((rank, os.getpid(), what))


def tell_and_sleep(rank: int, connection: Connection) -> None:
    connection.send((rank, os.getpid()))
    time.sleep(LONG)


def take_byte(connection: Connection) -> bytes:
    """One byte, which is for one reader only, where recv() would let two ranks share a message."""
    return os.read(connection.fileno(), 1)


def wait_for_byte(rank: int, connection: Connection) -> None:
    take_byte(connection)


def raise_odd(rank: int, bad: int) -> None:
    if rank == bad:
        raise Odd("boom", 42)
    time.sleep(LONG)


def raise_(rank: int, error: type[BaseException], *args: Any) -> None:
    if rank == 1:
        raise error(*args)


def kill_self(rank: int, bad: int, signum: int) -> None:
    if rank == bad:
        signal.signal(signum, signal.SIG_DFL) if signum not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), signum)
    time.sleep(LONG)


def interrupt_self(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LONG)


def leave(rank: int, code: Any) -> None:
    if rank == 1:
        sys.exit(code)


def leave_hard(rank: int, code: int) -> None:
    if rank == 1:
        os._exit(code)


def ignore_sigterm(rank: int, connection: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send((rank, os.getpid()))
    time.sleep(LONG)


def fail_together(rank: int, ready: Connection, go: Connection) -> None:
    ready.send(rank)
    take_byte(go)
    raise Odd(f"rank {rank}", rank)


def size(rank: int, data: bytes) -> int:
    return len(data)


def die_or_complain(
    rank: int, read: Connection, write: Connection, go: Connection, ready: Connection
) -> None:
    if rank == 0:
        go.recv()
        os.kill(os.getpid(), signal.SIGKILL)
    write.close()
    ready.send("ready")
    read.recv()
