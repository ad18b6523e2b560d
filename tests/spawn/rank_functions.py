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
        # A program that was started in the background of a shell ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def die_or_complain(rank: int, read: Connection, write: Connection, go: Connection, ready: Connection) -> None:
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


def grow_tree(rank: int, depth: int, start_method: str) -> None:
    print(os.getpid(), flush=True)
    if depth:
        import mp_spawn

        mp_spawn.start_processes(grow_tree, (depth - 1, start_method), 2, start_method=start_method)
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
    raise Odd("now that rank 0 is deaf", 1)


def follow_or_fail(rank: int, read: Connection, write: Connection) -> None:
    """Rank 0 ends a little after rank 1 has failed."""
    if rank == 1:
        os.write(write.fileno(), b"1")
        raise Odd("first", 1)
    take_byte(read)
    time.sleep(0.3)


def leave_a_daemon_behind(rank: int) -> None:
    """A process that holds everything it has inherited open."""
    import subprocess

    daemon = subprocess.Popen(["sleep", str(LONG)], start_new_session=True, close_fds=False)
    print(daemon.pid)
    daemon.returncode = 0  # nobody waits for it


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


def meet(rank: int, data: bytes, here: Connection, go: Connection) -> None:
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


def fail_at_first(rank: int, folder: Any, times: int) -> int:
    """Rank 1 fails for the first *times* times; each attempt leaves its pid in the rank's file."""
    path = folder / str(rank)
    with path.open("a") as file:
        print(os.getpid(), file=file)
    attempts = len(path.read_text().split())
    print("attempt", attempts)
    if rank == 1 and attempts <= times:
        raise Odd("not yet", attempts)
    return rank


def fork_and_return(rank: int) -> int:
    """The forked child runs out of this function as well, by an exception."""
    pid = os.fork()
    if pid == 0:
        raise Odd("in the child", 1)
    os.waitpid(pid, 0)
    return rank


def raise_and_hang(rank: int, folder: Any) -> int:
    """The first attempt raises, and leaves a thread that keeps the process."""
    import threading

    path = folder / str(rank)
    if rank == 1 and not path.exists():
        path.touch()
        threading.Thread(target=time.sleep, args=(LONG,)).start()
        raise Odd("and does not leave", 1)
    return rank


def return_and_die(rank: int, code: int) -> int:
    """Rank 1 ends badly on its way out, when it has returned already."""
    from multiprocessing import util

    if rank == 1:
        util.Finalize(None, os._exit, (code,), exitpriority=1)
    return rank
