"""Functions that ranks run. They are pickled by name, so they are at top level and import little."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from multiprocessing import Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

# Longer than any test, in seconds: ranks that a test ends do not end by themselves.
LONG = 300


class Odd(Exception):
    """An exception with an attribute, which can be pickled."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class CannotBePickled(Exception):
    def __init__(self) -> None:
        super().__init__("held together by a lambda")
        self.thing = lambda: None


class CannotBeUnpickled(Exception):
    """Its pickle calls it with one argument too few."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


class Leaves(Exception):
    """Would end the process in which its text or its pickle is asked for, or in which it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __str__(self) -> str:
        return sys.exit(0) if self.where == "text" else f"leaves in its {self.where}"

    def __reduce__(self) -> Any:
        return (sys.exit, (0,)) if self.where == "unpickler" else sys.exit(0) if self.where == "pickle" else (str, ())


def raise_one_that_leaves(rank: int, where: str) -> NoReturn:
    raise Leaves(where)


class RaisesWhenUnpickled:
    """Can be pickled, and raises an exception when it is unpickled."""

    def __reduce__(self) -> Any:
        return raise_value_error, ("while unpickled",)


def raise_value_error(text: str) -> NoReturn:
    raise ValueError(text)


def nothing(rank: int, *args: Any) -> None:
    pass


def give_back(rank: int, *args: Any) -> tuple[Any, ...]:
    return rank, *args


def sleep(rank: int, *args: Any) -> None:
    time.sleep(LONG)


def sleep_under_a_cut_name(rank: int) -> None:
    """
    Sleep under a name that the kernel has cut in the middle of a letter.
    """
    ctypes.CDLL(None).prctl(15, b"caf\xc3", 0, 0, 0)  # PR_SET_NAME
    time.sleep(LONG)


def raise_without_the_standard_library(rank: int) -> NoReturn:
    for name in "traceback", "linecache":  # as after os.chroot
        sys.modules[name] = None  # type: ignore[assignment]
    raise LookupError("beyond")


def tell(rank: int, connection: Connection, what: Any = None) -> None:
    connection.send((rank, os.getpid(), what))


def tell_and_sleep(rank: int, connection: Connection) -> None:
    connection.send((rank, os.getpid()))
    time.sleep(LONG)


def take_byte(connection: Connection) -> bytes:
    """Read one byte, which only one rank gets; with recv(), two ranks could each get a part of a message."""
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
        # A program that was started in the background of a shell ignores SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LONG)


def interrupt_self_and_end_after_the_other(rank: int, folder: Path) -> None:
    if rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: (folder / "was ended").touch())
        (folder / "waits").touch()
        while not (folder / "was ended").exists():
            time.sleep(0.01)
        return
    while not (folder / "waits").exists():
        time.sleep(0.01)
    Process(target=wait_for_file, args=(folder / "was ended",)).start()  # joined at the end of this process
    raise KeyboardInterrupt


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


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


def die_or_wait_for_the_dead(rank: int, read: Connection, write: Connection, go: Connection, ready: Connection) -> None:
    if rank == 0:
        go.recv()
        os.kill(os.getpid(), signal.SIGKILL)
    write.close()
    ready.send("ready")
    read.recv()


def print_pid(rank: int) -> None:
    print(os.getpid(), flush=True)
    time.sleep(LONG)


def wait_and_print(rank: int, seconds: float) -> None:
    time.sleep(seconds)
    print("done", flush=True)


def start_descendants(rank: int, depth: int, start_method: str) -> None:
    print(os.getpid(), flush=True)
    if depth:
        import mp_spawn

        mp_spawn.start_processes(start_descendants, (depth - 1, start_method), 2, start_method=start_method)
    time.sleep(LONG)


def hold_the_interpreter(rank: int) -> None:
    import ctypes

    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(LONG)


def tell_and_wait_for_byte(rank: int, connection: Connection, go: Connection) -> None:
    connection.send(rank)
    take_byte(go)
    connection.send("goodbye")


def tell_parent_and_sleep(rank: int, connection: Connection) -> None:
    connection.send((os.getpid(), os.getppid()))
    time.sleep(LONG)


def ignore_sigterm_or_fail(rank: int, read: Connection, write: Connection) -> None:
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(write.fileno(), b"1")
        time.sleep(LONG)
    take_byte(read)
    raise Odd("now that rank 0 ignores SIGTERM", 1)


def follow_or_fail(rank: int, read: Connection, write: Connection) -> None:
    """Fail in rank 1; rank 0 ends 0.3 s later."""
    if rank == 1:
        os.write(write.fileno(), b"1")
        raise Odd("first", 1)
    take_byte(read)
    time.sleep(0.3)


def leave_a_daemon_behind(rank: int) -> None:
    """Leave a process behind that keeps all inherited descriptors open."""
    import subprocess

    daemon = subprocess.Popen(["sleep", str(LONG)], start_new_session=True, close_fds=False)
    print(daemon.pid)
    daemon.returncode = 0  # it is not waited for


def fail_unless_first(rank: int) -> None:
    if rank:
        raise Odd("the second one", rank)


def start_ranks(rank: int, start_method: str) -> None:
    import mp_spawn

    mp_spawn.start_processes(nothing, start_method=start_method)


def make_bytes(rank: int, size: int) -> bytes:
    return bytes([rank]) * size


def make_generator(rank: int) -> Any:
    return (x for x in ())


def make_array(rank: int, size: int) -> Any:
    import numpy as np

    return np.full(size, float(rank))


def write_element(rank: int, shared: Any, again: dict[str, Any]) -> bool:
    """
    Write to an array, or to the one value; return whether both arguments are the same object.
    """
    if hasattr(shared, "value"):
        shared.value = rank + 1
    else:
        shared[rank] = rank + 1
    return again["the same"] is shared


def count_up(rank: int, lock: Any, queue: Any, counter: Any, times: int) -> None:
    for _ in range(times):
        with lock:
            counter[0] += 1
    queue.put(rank)


def write_share(rank: int, array: Any) -> bool:
    import mp_all

    array[rank * 250 : (rank + 1) * 250] = rank + 1
    return mp_all.is_shared(array)


class CountsItsPickles:
    pickled = 0

    def __reduce__(self) -> Any:
        CountsItsPickles.pickled += 1
        return CountsItsPickles, ()


def wait_for_all(rank: int, data: bytes, here: Connection, go: Connection) -> None:
    here.send(rank)
    take_byte(go)


def write_lines(rank: int, count: int, length: int) -> None:
    for _ in range(count):
        print(rank, str(rank) * length)


def write_everywhere(rank: int) -> None:
    import subprocess

    print("printed", flush=True)
    print("complained", file=sys.stderr)
    subprocess.run(["echo", "by a program"], check=True)
    print("without an end", end="")


def write_and_leave(rank: int, code: int) -> None:
    print(f"rank {rank} leaves")
    print("for good", file=sys.stderr)
    if rank == 1:
        sys.exit(code)


def variable(rank: int, name: str) -> str | None:
    return os.environ.get(name)


def threads_of_numpy(rank: int) -> int:
    import numpy as np

    np.ones((200, 200)) @ np.ones((200, 200))
    return len(os.listdir("/proc/self/task"))


def hash_is_random(rank: int) -> bool:
    return bool(sys.flags.hash_randomization)


def processors(rank: int) -> set[int]:
    return os.sched_getaffinity(0)


def note_parent_and_fail_at_first(rank: int, folder: Any) -> None:
    """
    Add the parent's pid to a file of this rank; die the first time.
    """
    path = folder / str(rank)
    is_first = not path.exists()
    with path.open("a") as file:
        file.write(f"{os.getppid()}\n")
    if is_first:
        os._exit(3)


def fail_at_first(rank: int, folder: Any, times: int) -> int:
    """Fail the first *times* times in rank 1; each attempt appends its pid to the rank's file."""
    path = folder / str(rank)
    with path.open("a") as file:
        print(os.getpid(), file=file)
    attempts = len(path.read_text().split())
    print("attempt", attempts)
    if rank == 1 and attempts <= times:
        raise Odd("not yet", attempts)
    return rank


def fork_and_return(rank: int) -> int:
    """Fork a child that leaves this function, too, by an exception."""
    pid = os.fork()
    if pid == 0:
        raise Odd("in the child", 1)
    os.waitpid(pid, 0)
    return rank


def raise_and_hang(rank: int, folder: Any) -> int:
    """Raise at the first attempt, with a thread that keeps the process from ending."""
    import threading

    path = folder / str(rank)
    if rank == 1 and not path.exists():
        path.touch()
        threading.Thread(target=time.sleep, args=(LONG,)).start()
        raise Odd("and does not end", 1)
    return rank


def return_and_die(rank: int, code: int) -> int:
    """Return, then exit with *code* in rank 1 while the process ends."""
    from multiprocessing import util

    if rank == 1:
        util.Finalize(None, os._exit, (code,), exitpriority=1)
    return rank
