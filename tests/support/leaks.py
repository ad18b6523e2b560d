"""The leak check: what a process and its descendants hold, before a test and after it.

*Sets* are compared, and never numbers: an open descriptor is known by what it refers to, a process
by its pid, a thread by its identity, shared memory by its name. What is legitimately made once per
process is made before the first test (`warm_up`), so that no list of exceptions is needed here.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import uuid
from collections import Counter
from multiprocessing import active_children, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import mp_all as mp

from .waiting import until

# Every program that a test starts has this in its environment, so that an orphan is still found.
# A run inside a run keeps the outer one's.
TOKEN = ("MP_TEST_RUN", os.environ.get("MP_TEST_RUN") or uuid.uuid4().hex)
# How long something may take to go by itself: a feeder thread, a dying child, a peer's acknowledgement.
PATIENCE = float(os.environ.get("MP_TEST_LEAK_PATIENCE", "5"))
OUR_NAMES = re.compile(r"mpshm-[0-9a-f]+")
SHM = Path("/dev/shm")
# What the engine itself says that it holds for this process, beyond its cache.
HELD = ("live_bytes", "in_flight_bytes")


def descriptors() -> Counter[str]:
    """
    What the open descriptors refer to; a duplicate counts twice.
    """
    targets: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets[os.readlink(f"/proc/self/fd/{fd}")] += 1
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return targets


def processes() -> dict[int, str]:
    """
    Children of this process, zombies included, and every program started by a descendant: pid to name.
    """
    here, mark = os.getpid(), "=".join(TOKEN).encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == here:
            continue
        try:
            name, fields = Path(f"/proc/{entry}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
            if int(fields.split()[1]) == here or mark in Path(f"/proc/{entry}/environ").read_bytes():
                found[int(entry)] = name
        except OSError:
            pass  # it has just ended, or belongs to another user
    return found


def names() -> set[str]:
    """
    The names of our shared memory in /dev/shm, whoever made them.
    """
    return {name for name in os.listdir(SHM) if OUR_NAMES.fullmatch(name)} if SHM.is_dir() else set()


def names_of_strangers(ours: set[int]) -> set[str]:
    """
    Names that a process outside this run has mapped or open: another run beside this one.
    """
    found: set[str] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in ours:
            continue
        try:
            found.update(OUR_NAMES.findall(Path(f"/proc/{entry}/maps").read_text()))
            for fd in os.listdir(f"/proc/{entry}/fd"):
                found.update(OUR_NAMES.findall(os.readlink(f"/proc/{entry}/fd/{fd}")))
        except OSError:
            pass
    return found


class Snapshot:
    """
    What is held at one moment.
    """

    def __init__(self) -> None:
        active_children()  # reaps those that have ended
        self.descriptors = descriptors()
        self.names = names()
        self.processes = processes()
        self.threads = {thread.ident: thread.name for thread in threading.enumerate()}
        stats = mp.memory_stats()
        self.held = {key: stats.get(key, 0) for key in HELD}

    def leaked_since(self, before: Snapshot) -> list[str]:
        """
        A line for each thing held now and not then; names are not looked at here.
        """
        lines = [
            f"descriptor of {target} (x{n})" for target, n in (self.descriptors - before.descriptors).items()
        ]
        lines += [
            f"process {pid} ({self.processes[pid]})" for pid in self.processes.keys() - before.processes
        ]
        lines += [f"thread {self.threads[i]!r}" for i in self.threads.keys() - before.threads]
        lines += [f"{key} {before.held[key]} -> {n}" for key, n in self.held.items() if n > before.held[key]]
        return sorted(lines)


def snapshot() -> Snapshot:
    """
    What is held once garbage and cache are given back.
    """
    gc.collect()
    mp.empty_cache()
    return Snapshot()


def leaks_since(before: Snapshot) -> list[str]:
    """
    What is held beyond *before* and does not go in time.
    """
    remaining: list[str] = []
    # Another run beside this one makes names too, and drops them again: a leak is a name that each
    # look has seen and that no stranger has.
    suspects = names() - before.names

    def clean() -> bool:
        now = snapshot()
        suspects.intersection_update(now.names)
        if suspects:
            suspects.difference_update(names_of_strangers(now.processes.keys() | {os.getpid()}))
            suspects.intersection_update(names())
        remaining[:] = now.leaked_since(before) + [f"name /dev/shm/{name}" for name in sorted(suspects)]
        return not remaining

    until(clean, PATIENCE)
    return remaining


def warm_up() -> None:
    """
    Make what a process makes once and keeps to its end.
    """
    os.environ.__setitem__(*TOKEN)
    # The standard library's tracker: one process and one pipe, for semaphores and SharedMemory.
    resource_tracker.ensure_running()
    # The standard library's listener that hands descriptors to children: one thread and one socket.
    ends: list[Any] = list(mp.Pipe())
    ends += [ForkingPickler.loads(ForkingPickler.dumps(end)) for end in ends]
    for end in ends:
        end.close()
    # Ours: what the first block of each strategy starts (the manager and the connection to it).
    strategy = mp.get_sharing_strategy()
    for name in sorted(mp.get_all_sharing_strategies()):
        mp.set_sharing_strategy(name)
        ForkingPickler.loads(ForkingPickler.dumps(mp.Block(1)))
    mp.set_sharing_strategy(strategy)
