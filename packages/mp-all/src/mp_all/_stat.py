"""`python -m mp_all stat`: every segment of every session and its holders, for people, as JSON or for Prometheus."""

from __future__ import annotations

import argparse
import json
import os

import mp_all
from mp_all import _sessions
from mp_all._limits import size
from mp_all._report import report_of_others
from mp_core.system import machine


def health(session: _sessions.Session) -> str:
    """Return the state of a session's manager, and its consequence."""
    if session.manager is not None:
        remedy = session.manager.remedy()
        return f"manager {session.manager.pid}" + (f" ({remedy})" if remedy else "")
    if session.alive:
        return "no manager; the next process that needs one starts it"
    return "left behind by a crash of all its processes; the next program that shares removes it"


def stat() -> None:
    """Print each session of this user, a line for each of their segments, and the processes that hold them."""
    if not machine.has_libshm():
        print(f"portable sharing on {machine.name()}: no process lists the segments of others")
        return
    own = os.getpid()
    sessions = _sessions.sessions()
    for session in sessions:
        if session.alive or session.manager is not None:
            print(f"{session.name[:8]}  {health(session)}", flush=True)  # before a stopped manager delays the rest
    for array in _sessions.named_arrays():
        print(array)
    devices = [each for each in report_of_others()["devices"] if each["pid"] != own]
    if devices:
        line = "{:<34}{:>8}{:>16}{:>16}"
        print("\n" + line.format("device", "process", "its own, sent", "of others"))
        for each in devices:
            print(line.format(each["device"], each["pid"], size(each["own_bytes"]), size(each["held_bytes"])))
    segments = [segment for segment in mp_all.list_segments() if segment.owner != own]
    if not segments:
        print("no segment could be listed" if sessions else "no process of this user shares memory now")
        return
    line = "{:<10}{:<17}{:>8}{:>9}{:>9}{:>12}{:>12}{:>12}  {}"
    print()
    print(line.format("session", "strategy", "owner", "age", "blocks", "live", "in flight", "cached", "holders"))
    for s in segments:
        holders = " ".join(map(str, s.holders)) or "-"
        owner = str(s.owner) if s.owner else "(dead)"
        sizes = (size(s.live_bytes), size(s.in_flight_bytes), size(s.cached_bytes))
        print(line.format(s.session[:8], s.strategy, owner, f"{s.age:.1f} s", s.live_blocks, *sizes, holders))
    print()
    for pid in sorted({pid for s in segments for pid in (s.owner, *s.holders)} - {0, own}):
        print(f"{pid:>8}  {_sessions.command_of(pid)}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mp-all stat", description="Show who holds shared memory now.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print mp_all.memory_report() as JSON")
    how.add_argument(
        "--prometheus", metavar="[HOST:]PORT", help="serve the numbers to Prometheus; the host is 127.0.0.1 by default"
    )
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(mp_all.memory_report(), indent=2))
    elif options.prometheus is not None:
        from mp_all import _prometheus

        return _prometheus.serve(options.prometheus)
    else:
        stat()
    return 0
