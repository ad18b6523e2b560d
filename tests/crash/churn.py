"""A program whose workers keep, check and exchange arrays while another process injects faults at random.

    python churn.py SECONDS SEED MAILBOXES

Workers live for some hundred steps and are replaced: plain ones, and daemons that have closed every descriptor. They
share through files, so that a killed writer leaves no half of a message behind. The faults are injected from outside
by a process that shares nothing: it could not go on in what it has stopped itself.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

WORKERS = 7
SIZES = (100, 5_000, 70_000, 70_000, 600_000, 3_000_000)
HANGS_AFTER = 90.0


def descendants(pid: int) -> list[int]:
    try:
        children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [pid for child in children for pid in (child, *descendants(child))]


def send(signum: int, pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


def inject(program: int, seconds: float, seed: int) -> None:
    from scene import managers

    rng = random.Random(seed)
    runtime = Path(os.environ["MPSHM_RUNTIME_DIR"])
    mine = runtime / f"mpshm-{os.geteuid()}"
    stopped: dict[int, float] = {}
    end = time.monotonic() + seconds
    done: Counter[str] = Counter()

    def stop(pids: list[int], longest: float) -> None:
        stopped.update((pid, time.monotonic() + longest * rng.random() ** 3) for pid in pids)
        send(signal.SIGSTOP, pids)

    while (now := time.monotonic()) < end and os.getppid() == program:
        due = [pid for pid, when in stopped.items() if when < now]
        send(signal.SIGCONT, due)
        for pid in due:
            del stopped[pid]
        workers = [pid for pid in descendants(program) if pid != os.getpid()]
        one = rng.sample(workers, min(len(workers), 1))
        fault = rng.choices(("kill", "stop", "kill manager", "stop manager", "folder", "socket"), (8, 6, 2, 2, 1, 1))[0]
        done[fault] += 1
        if fault == "kill":
            send(signal.SIGKILL, one)
        elif fault == "stop":
            stop(one, 3)
        elif fault == "kill manager":
            send(signal.SIGKILL, managers(runtime))
        elif fault == "stop manager":
            stop(managers(runtime), 0.3)
        elif fault == "folder":
            shutil.rmtree(mine, ignore_errors=True)
        else:
            for socket in mine.glob("*/socket"):
                socket.unlink(missing_ok=True)
        time.sleep(rng.random() * 0.02)
    send(signal.SIGCONT, list(stopped))
    print(sum(done.values()), "faults:", dict(done), flush=True)
    os._exit(0)


def check(held: list[tuple[Any, int]]) -> None:
    if not all((array == value).all() for array, value in held):
        os._exit(3)


def post(folder: Path, to: int, message: Any, count: int) -> None:
    from multiprocessing.reduction import ForkingPickler

    name = folder / f"{to}-{os.getpid()}-{count}"
    name.write_bytes(ForkingPickler.dumps(message))
    name.rename(f"{name}.message")


def fetch(folder: Path, me: int) -> bytes | None:
    for path in folder.glob(f"{me}-*.message"):
        try:
            taken = path.rename(f"{path}.{os.getpid()}")
        except FileNotFoundError:
            continue
        data = taken.read_bytes()
        taken.unlink()
        return data
    return None


def work(me: int, seed: float, folder: Path, end: float) -> None:
    import numpy as np

    import mp_all as mp

    rng = random.Random(seed)
    held: list[tuple[Any, int]] = []
    if rng.random() < 0.5:
        os.closerange(3, 4096)
        for _ in range(5):
            os.open("/dev/null", os.O_RDONLY)  # gets a number that was the library's
    for step in range(rng.randrange(30, 400)):
        if time.monotonic() > end:
            break  # a busy machine would need minutes for the rest, as if this process hung
        what = rng.random()
        try:
            if what < 0.4:
                value = rng.randrange(250)
                held.append((mp.shared.full(rng.choice(SIZES), value, "u1"), value))
            elif what < 0.6 and held:
                held.pop(rng.randrange(len(held)))
            elif what < 0.75 and held:
                array, value = rng.choice(held)
                message = (array if rng.random() < 0.5 else np.array(array), value)
                post(folder, rng.randrange(WORKERS), message, step)
            elif what < 0.92:
                data = fetch(folder, me)
                if data is not None:
                    held.append(pickle.loads(data))
            elif (child := os.fork()) == 0:
                try:
                    check([*held, (mp.shared.full(1000, 7, "u1"), 7)])
                finally:
                    os._exit(0)
            elif os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3:
                os._exit(3)
        except (MemoryError, OSError, mp.ReceiveError):
            pass  # it was said, and nothing is lost that was held
        check(held)
        del held[20:]
    os._exit(0)


def main(seconds: float, seed: int, folder: Path) -> None:
    program = os.getpid()
    injector = os.fork()
    if injector == 0:
        inject(program, seconds, seed)
    import mp_all as mp

    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    keep = [(mp.shared.full(50_000 + i, i, "u1"), i) for i in range(10)]
    workers: dict[int, int] = {}
    ends: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end or workers:
        for me in set(range(WORKERS)) - set(workers.values()) if time.monotonic() < end else ():
            chosen = rng.random()
            pid = os.fork()
            if pid == 0:
                try:
                    work(me, chosen, folder, end)
                finally:
                    os._exit(4)
            workers[pid] = me
        check(keep)
        assert time.monotonic() < end + HANGS_AFTER, f"hang: {workers}"
        for pid in list(workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del workers[pid]
                ends[os.waitstatus_to_exitcode(status)] += 1
        time.sleep(0.002)
    os.waitpid(injector, 0)
    check(keep)
    assert set(ends) <= {0, -signal.SIGKILL}, ends  # 3: wrong bytes, 4: an error that should not be
    print("workers:", dict(ends))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
