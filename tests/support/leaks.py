"""The leak check: the resources of a process and its descendants, before a test and after it.

*Sets* are compared, and never numbers: an open descriptor is known by what it refers to, a process
by its pid, a thread by its identity, shared memory by its name. Resources that a process makes once
are made before the first test (`warm_up`), so that no list of exceptions is needed here.
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
from mp_core.sharing import backend
from mp_core.system import machine

from .waiting import until

# Every program that a test starts has this in its environment, so that an orphan is still found.
# A run inside a run keeps the outer one's.
TOKEN = ("MP_TEST_RUN", os.environ.get("MP_TEST_RUN") or uuid.uuid4().hex)
# How long something may take to go by itself: a feeder thread, a dying child, a peer's acknowledgement.
PATIENCE = float(os.environ.get("MP_TEST_LEAK_PATIENCE", "5"))
OUR_NAMES = re.compile(r"mpshm-[0-9a-f]+|mps-[0-9a-v]{26}")
SHM = Path("/dev/shm")
# Attached memory stays mapped, cached for the next block, and has one descriptor. The library counts the blocks
# in use (`HELD`); `names_in_use` finds whether a process has the memory.
CACHED = re.compile(r"/memfd:mpshm|/dev/shm/(mpshm|mps)-")
# Our own counters of resources of this process, beyond its cache.
HELD = ("live_bytes", "in_flight_bytes")


def descriptors() -> Counter[str]:
    """
    Return the targets of the open descriptors; a duplicate counts twice.
    """
    targets: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if not CACHED.match(target):
            targets[target] += 1
    return targets


# Processes that do not belong to this run, and how often they were examined. The first time could fall
# between a fork and the exec that gives a process its environment.
foreign: Counter[str] = Counter()


def processes() -> dict[int, str]:
    """
    Children of this process, zombies included, and every program started by a descendant: pid to name.
    """
    here, mark = os.getpid(), "=".join(TOKEN).encode()
    everybody = set(filter(str.isdigit, os.listdir("/proc"))) - {str(here)}
    for pid in foreign.keys() - everybody:
        del foreign[pid]
    found = {}
    for pid in everybody:
        if foreign[pid] == 2:
            continue
        try:
            name, fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").split("(", 1)[1].rsplit(")", 1)
            if int(fields.split()[1]) == here or mark in Path(f"/proc/{pid}/environ").read_bytes():
                found[int(pid)] = name
                continue
        except OSError:
            pass  # it has just ended, or belongs to another user
        foreign[pid] += 1
    return found


def names() -> set[str]:
    """
    Return the names of our shared memory in /dev/shm, made by any process.
    """
    found = set(filter(OUR_NAMES.fullmatch, os.listdir(SHM))) if SHM.is_dir() else set()
    if not backend.LIBSHM and machine.functions().dies_with_last_handle():
        # The stand-in for Windows: an object that nobody has open is gone, and has a name here only.
        gone = found - names_in_use()
        for name in gone:
            (SHM / name).unlink(missing_ok=True)
        found -= gone
    return found


def names_in_use() -> set[str]:
    """
    Return the names that a process has mapped or open: of this run, as cached memory, or of another run.
    """
    found: set[str] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.update(OUR_NAMES.findall(Path(f"/proc/{entry}/maps").read_text(errors="replace")))
            for fd in os.listdir(f"/proc/{entry}/fd"):
                found.update(OUR_NAMES.findall(os.readlink(f"/proc/{entry}/fd/{fd}")))
        except OSError:
            pass
    return found


def folders() -> dict[str, int]:
    """
    Return the folders of sessions, in which their managers listen, and the inode of their control files.
    """
    found = {}
    runtime = Path(os.environ.get("MPSHM_RUNTIME_DIR") or "/tmp", f"mpshm-{os.geteuid()}")
    for control in runtime.glob("*/control"):
        try:
            found[str(control.parent)] = control.stat().st_ino
        except FileNotFoundError:
            pass
    return found


def locked_inodes() -> set[int]:
    """
    Return the locked files; each process of a session locks its control file.
    """
    return {int(line.split()[-3].split(":")[-1]) for line in Path("/proc/locks").read_text().splitlines()}


class Snapshot:
    """
    The resources at one moment.
    """

    def __init__(self) -> None:
        active_children()  # reaps those that have ended
        self.descriptors = descriptors()
        self.names = names()
        self.folders = folders()
        self.processes = processes()
        self.threads = {thread.ident: thread.name for thread in threading.enumerate()}
        stats = mp.memory_stats()
        self.held = {key: stats.get(key, 0) for key in HELD}

    def leaked_since(self, before: Snapshot) -> list[str]:
        """
        Return a line for each resource of now that was not there then, except names and folders.
        """
        lines = [f"descriptor of {target} (x{n})" for target, n in (self.descriptors - before.descriptors).items()]
        lines += [f"process {pid} ({self.processes[pid]})" for pid in self.processes.keys() - before.processes]
        lines += [f"thread {self.threads[i]!r}" for i in self.threads.keys() - before.threads]
        lines += [f"{key} {before.held[key]} -> {n}" for key, n in self.held.items() if n > before.held[key]]
        return sorted(lines)


_is_clean = False  # since the last look after a test


def snapshot() -> Snapshot:
    """
    Return the resources after garbage and cache were freed.
    """
    global _is_clean
    gc.collect()
    mp.empty_cache()
    _is_clean = True
    return Snapshot()


def before_a_test() -> Snapshot:
    """
    Return the resources; free garbage and cache before only if the look after the last test has not done it.
    """
    global _is_clean
    found = Snapshot() if _is_clean else snapshot()
    _is_clean = False
    return found


def leaks_since(before: Snapshot) -> list[str]:
    """
    Return the resources that were not there *before* and do not go in time.
    """
    remaining: list[str] = []
    # Names and folders are for all to see: a leak is one that each look has found, with nobody behind it.
    orphans = names() - before.names
    deserted = folders().keys() - before.folders.keys()

    def clean() -> bool:
        now = snapshot()
        orphans.intersection_update(now.names)
        if orphans:
            orphans.difference_update(names_in_use())
            orphans.intersection_update(names())
        deserted.intersection_update(now.folders)
        if deserted:
            taken = locked_inodes()
            deserted.difference_update([path for path in deserted if now.folders[path] in taken])
            deserted.intersection_update(folders())
        remaining[:] = [
            *now.leaked_since(before),
            *(f"name /dev/shm/{name}" for name in sorted(orphans)),
            *(f"folder {path}" for path in sorted(deserted)),
        ]
        return not remaining

    until(clean, PATIENCE)
    return remaining


def warm_up() -> None:
    """
    Make the resources that a process makes once and keeps until it ends.
    """
    os.environ.__setitem__(*TOKEN)
    # The standard library's tracker: one process and one pipe, for semaphores and SharedMemory.
    resource_tracker.ensure_running()
    # The standard library's listener that hands descriptors to children: one thread and one socket.
    ends: list[Any] = list(mp.Pipe())
    ends += [ForkingPickler.loads(ForkingPickler.dumps(end)) for end in ends]
    for end in ends:
        end.close()
    # Ours: what the first block of each strategy starts (the manager and the connection to it, or the file of locks).
    strategy = mp.get_sharing_strategy()
    for name in sorted(mp.get_all_sharing_strategies()):
        mp.set_sharing_strategy(name)
        ForkingPickler.loads(ForkingPickler.dumps(mp.Block(1)))
    mp.set_sharing_strategy(strategy)
