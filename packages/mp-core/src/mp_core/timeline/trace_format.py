"""A report in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing read.

The fields are those of "Trace Event Format" by Google: times are microseconds, `pid` and `tid` are the real ones.

    ph X      a span: `cat` is task, wait.get, wait.put, wait.lock, copy, pickle, start or process
    ph s, f   a message, from its put to its get
    ph C      memory
    ph M      the names of processes
"""

from __future__ import annotations

import json
from typing import Any

from mp_core.timeline.run import Run


def trace(run: Run) -> str:
    """Return the report, one event a line."""
    return '{"traceEvents": [\n' + ",\n".join(map(json.dumps, _events(run))) + '\n], "displayTimeUnit": "ms"}\n'


def _events(run: Run) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for at, process in enumerate(run.processes):
        about: dict[str, Any] = {"ph": "M", "pid": process.pid, "tid": process.pid, "ts": 0}
        events.append({**about, "name": "process_name", "args": {"name": process.name}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": at}})
        whole = {"how": process.how, "lost_events": process.lost}
        events.append(_span("process", process.name, process.began, process.ended, process.pid, process.pid, whole))
        for span in process.spans:
            events.append(_span(span.category, span.name, span.start, span.end, process.pid, span.thread, span.details))
    for number, arrow in enumerate(run.arrows):
        flow = {"cat": "message", "name": "message", "id": number}
        args = {"bytes": arrow.nbytes}
        put = {"ph": "s", "ts": arrow.put / 1000, "pid": arrow.put_by, "tid": arrow.put_thread, "args": args}
        got = {"ph": "f", "bp": "e", "ts": max(arrow.got, arrow.put) / 1000, "pid": arrow.got_by}
        events += [{**flow, **put}, {**flow, **got, "tid": arrow.got_thread}]
    for sample in run.samples:
        counter: dict[str, Any] = {"ph": "C", "ts": sample.time / 1000}
        shared = {"used": sample.used, "cached": sample.cached, "in_flight": sample.in_flight}
        events.append({**counter, "name": "shared memory", "pid": run.owner, "args": shared})
        for pid, nbytes in sample.resident.items():
            events.append({**counter, "name": "resident memory", "pid": pid, "args": {"bytes": nbytes}})
    return events


def _span(
    category: str, name: str, start: int, end: int, pid: int, thread: int, details: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": category, "name": name, **times, "pid": pid, "tid": thread, "args": details}
