"""`memory_report()`: who holds shared memory, what is in flight, and since when, as one dictionary."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

from mp_core.channels import channel_list
from mp_core.memory import process_list
from mp_core.system import imports, machine


def memory_report() -> dict[str, Any]:
    """
    Return the shared memory of all programs of this user, process by process.

    It reads the tables of each session and writes nothing to them. ``python -m mp_all top`` shows the same live, and
    ``python -m mp_all stat --json`` prints it.

    Returns
    -------
    dict of str to object
        JSON can write it. Times are in seconds and sizes in bytes.

        - ``time``: of the report, since 1970
        - ``sessions``: for each, its ``id``, whether it is ``alive``, the pid of its ``manager`` (None without one),
          the ``manager_problem`` in a word, ``manager_restarts``, the number of ``processes``, ``cached_bytes`` and
          ``cache_limit``
        - ``processes``: for each, its ``session``, ``pid`` and ``command``; whether it is ``attached`` (False: it has
          ended, and its messages are still unread); ``held_bytes`` and ``held_blocks`` that it references, where shared
          memory counts for each holder; ``cached_bytes``; ``in_flight_bytes`` and ``in_flight_blocks`` that it sent and
          no process has received; and of these the ``oldest``: ``seconds`` since it was sent, ``bytes``, and the
          ``line`` of the program that sent it, if ``MP_TRACE=1``. It is None when nothing is in flight
        - ``channels``: for each direction of each pipe and queue of these processes, the ``pids`` that have an end, the
          messages that were sent and are ``unread``, and their ``bytes``. Messages that the thread of a full queue
          keeps, and those of pipes without a ring, are not counted
        - ``devices``: for each of these processes and each device of which it has memory of other processes, or others
          have or may receive its own: its ``pid``, the UUID of the ``device``; ``own_bytes`` and ``own_allocations`` of
          its own; ``held_bytes`` and ``held_allocations`` of other processes that its arrays use. Memory that is open
          only for the next message is not counted
        - ``named``: for each array of `shared.named` that nobody has unlinked, its ``name``, its ``bytes``, and the
          ``pids`` of this user's processes that have it
        - ``queues``: for each `multiprocessing.Queue` of *this* process, its ``pid`` and ``kind``, ``depth`` (messages
          put and not taken, None if the system cannot say) and ``maxsize``

    Examples
    --------
    >>> a = mp.shared.zeros(1000)
    >>> own = [p for p in mp.memory_report()["processes"] if p["pid"] == os.getpid()]
    >>> own[0]["held_bytes"] >= a.nbytes
    True
    """
    return report_of_others() | {"queues": _queues()}


def report_of_others() -> dict[str, Any]:
    """Return the report without the queues of this process, which a command does not have."""
    from mp_all import _sessions

    listed, processes = process_list.list_processes()
    about = {session.name: session for session in listed}
    found = {session.name: session for session in _sessions.sessions()}
    pids = sorted({entry.pid for entry in processes if entry.attached})
    channels = channel_list.list_channels(pids)
    return {
        "time": time.time(),
        "sessions": [_session(name, about.get(name), found.get(name)) for name in sorted({*about, *found})],
        "processes": [_process(entry, _sessions.command_of) for entry in processes],
        "devices": [holder._asdict() for holder in _holders(pids)],
        "named": [{"name": each.name, "bytes": each.nbytes, "pids": each.pids} for each in _sessions.named_arrays()],
        "channels": [{"pids": list(each.pids), "unread": each.unread, "bytes": each.nbytes} for each in channels],
    }


def _holders(pids: list[int]) -> Any:
    return imports.load("mp_cuda.sharing.holders").list_holders(pids) if machine.system() == "linux" else []


def _session(name: str, listed: process_list.SessionEntry | None, found: Any) -> dict[str, Any]:
    manager = found.manager if found else None
    return {
        "id": name,
        "alive": found.alive if found else True,  # its folder was removed, and it goes on without
        "manager": manager.pid if manager else None,
        "manager_problem": manager.state if manager else "",
        "manager_restarts": max(0, listed.manager_starts - 1) if listed else 0,
        "processes": listed.processes if listed else 0,
        "cached_bytes": listed.cached_bytes if listed else 0,
        "cache_limit": listed.cache_limit if listed else 0,
    }


def _process(entry: process_list.ProcessEntry, command_of: Any) -> dict[str, Any]:
    oldest = {"seconds": entry.oldest_seconds, "bytes": entry.oldest_bytes, "line": entry.oldest_line or None}
    return {
        "session": entry.session,
        "pid": entry.pid,
        "command": command_of(entry.pid) if entry.attached else "",
        "attached": entry.attached,
        "held_bytes": entry.held_bytes,
        "held_blocks": entry.held_blocks,
        "cached_bytes": entry.cached_bytes,
        "in_flight_bytes": entry.in_flight_bytes,
        "in_flight_blocks": entry.in_flight_blocks,
        "oldest": oldest if entry.in_flight_blocks else None,
    }


def _queues() -> list[dict[str, Any]]:
    """Return the queues of this process. Others cannot be asked: a queue counts in a semaphore without a name."""
    module = sys.modules.get("multiprocessing.queues")
    if module is None:
        return []
    found = []
    for thing in gc.get_objects():
        if not issubclass(type(thing), module.Queue):  # isinstance() may run code of the object
            continue
        try:
            depth = thing.qsize()
        except (NotImplementedError, AttributeError):  # macOS; a queue that another thread is making
            depth = None
        maxsize = getattr(thing, "_maxsize", None)
        found.append({"kind": type(thing).__name__, "pid": os.getpid(), "depth": depth, "maxsize": maxsize})
    return found
