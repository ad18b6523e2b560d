"""A program that injects one fault after the other, and records the fate of every message.

    python storm.py COUNT SEED [FAULT]

Each fault has a producer and a consumer of its own, joined by a pipe. The producer says which messages it has sent,
the consumer what became of each; each process that is not killed must exit with 0, and in time.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import time
import warnings
import zlib
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from scene import managers

import mp_all as mp

MESSAGES = 6
DEADLINE = 40.0
SIZES = (10, 5_000, 60_000, 60_000, 400_000, 2_000_000)
KILLED = {
    "producer": ("producer",),
    "consumer": ("consumer",),
    "manager": ("manager",),
    "producer and manager": ("producer", "manager"),
    "consumer and manager": ("consumer", "manager"),
    "both": ("producer", "consumer"),
}
FAULTS = ("unpicklable", "sender without descriptors", "receiver without descriptors", "hang-up", *KILLED)


def no_more_descriptors() -> None:
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))


def produce(fault: str, seed: int, channel: Connection, report: Connection) -> None:
    rng = random.Random(seed)
    if fault == "sender without descriptors":
        no_more_descriptors()
    for k in range(MESSAGES):
        data = rng.randbytes(rng.choice(SIZES))
        array = np.frombuffer(data, np.uint8).copy() if rng.random() < 0.5 else shared(data)
        message = (k, zlib.crc32(data), array)
        try:
            channel.send([message, lambda: 0] if fault == "unpicklable" and k % 2 else message)
        except Exception as error:
            report.send(("raised", k, type(error).__name__))
        else:
            report.send(("sent", k, ""))


def shared(data: bytes) -> np.ndarray:
    try:
        array = mp.shared.empty(len(data), np.uint8)
    except (MemoryError, OSError):  # the caller got the error; the array is sent by value
        return np.frombuffer(data, np.uint8).copy()
    array[:] = np.frombuffer(data, np.uint8)
    return array


def consume(fault: str, seed: int, channel: Connection, report: Connection) -> None:
    if fault == "receiver without descriptors":
        no_more_descriptors()
    got = 0
    while fault != "hang-up" or got < MESSAGES // 2:
        try:
            k, checksum, array = channel.recv()
        except (EOFError, ConnectionError):
            break
        except Exception as error:  # the message is gone, and its receiver knows it
            report.send(("refused", -1, type(error).__name__))
            continue
        report.send(("intact" if zlib.crc32(array) == checksum else "WRONG BYTES", k, ""))
        got += 1


def one_fault(fault: str, seed: int) -> Counter[str]:
    rng = random.Random(-seed)
    reader, writer = mp.Pipe(False)
    actors: dict[str, Any] = {}
    reports: dict[Connection, str] = {}
    for name, target, end in (("producer", produce, writer), ("consumer", consume, reader)):
        ours, theirs = mp.Pipe(False)
        other = reader if end is writer else writer
        actors[name] = mp.Process(target=alone, args=(target, fault, seed, end, theirs, other))
        actors[name].start()
        theirs.close()
        reports[ours] = name
    reader.close()
    writer.close()

    if fault in KILLED:
        time.sleep(rng.random() * 0.012)
        for name in KILLED[fault]:
            for pid in managers(os.environ["MPSHM_RUNTIME_DIR"]) if name == "manager" else [actors[name].pid]:
                with contextlib.suppress(ProcessLookupError):  # it has ended, and the next `start` has reaped it
                    os.kill(pid, signal.SIGKILL)
    said = listen(reports, fault, seed)
    for name, process in actors.items():
        process.join(DEADLINE)
        assert process.exitcode in ((0, -9) if name in KILLED.get(fault, ()) else (0,)), (fault, seed, name, process)
        process.close()
    settle(fault, seed, said)
    return Counter(what for what, _, _ in said)


def alone(target: Any, fault: str, seed: int, end: Connection, report: Connection, other: Connection) -> None:
    other.close()  # or its holder would never see the end of the pipe
    target(fault, seed, end, report)


def listen(reports: dict[Connection, str], fault: str, seed: int) -> list[tuple[str, int, str]]:
    """Everything that both say until they have ended."""
    said = []
    deadline = time.monotonic() + DEADLINE
    while reports:
        ready = wait(list(reports), deadline - time.monotonic())
        assert ready, f"hangs: {fault} (seed {seed}): {reports.values()} have not ended; said: {said}"
        for end in ready:
            try:
                said.append(end.recv())
            except (EOFError, OSError):
                del reports[end]
                end.close()
    return said


def settle(fault: str, seed: int, said: list[tuple[str, int, str]]) -> None:
    """Return whether each message was delivered, or its sender or receiver knows that it was not."""
    where = f"{fault} (seed {seed}): {said}"
    by = {what: sorted(k for w, k, _ in said if w == what) for what in ("sent", "raised", "intact", "refused")}
    killed = KILLED.get(fault, ())
    assert not [line for line in said if line[0] == "WRONG BYTES"], where
    assert len(by["intact"]) == len(set(by["intact"])), where
    if "producer" not in killed:
        assert sorted(by["sent"] + by["raised"]) == list(range(MESSAGES)), where
        assert not set(by["raised"]) & set(by["intact"]), where
    if "consumer" not in killed and fault != "hang-up":
        lost = set(by["sent"]) - set(by["intact"])
        assert len(lost) <= len(by["refused"]), where
    if fault == "unpicklable":
        assert by["raised"] == [1, 3, 5], where
    if fault in ("unpicklable", "sender without descriptors"):
        assert not by["refused"], where
    # A producer that has ended and the manager are the only ones with a memfd that no receiver has attached yet.
    if fault == "manager" and mp.get_sharing_strategy() == "file_system":
        assert not by["refused"], where


def main(count: int, seed: int, faults: tuple[str, ...]) -> None:
    warnings.simplefilter("ignore", mp.SharedMemoryWarning)
    mp.set_start_method("fork")
    keep = mp.shared.full(100_000, 5)
    total: Counter[str] = Counter()
    for k in range(count):
        total += one_fault(faults[k % len(faults)], seed + k)
    assert (keep == 5).all()
    print(count, "faults:", dict(total))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:]) or FAULTS)
