"""A report as one page of HTML, which needs no other file: `page.html`, with the run as JSON inside.

Plain canvas code draws it: a chart library draws no lanes, so it would save little, and would be inlined in each page.

Names are the program's: in the JSON each ``<`` is escaped, so no text can end the element, and the page sets texts
only, never HTML.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import Any

from mp_core.timeline.run import Process, Run, Span
from mp_core.timeline.summary import size, summarise

_TEMPLATE = os.path.join(os.path.dirname(__file__), "page.html")
# A page with more would be slow to open; the longest spans and all those of tasks tell most.
MOST_SPANS = 100_000
MOST_ARROWS = 50_000
MOST_SAMPLES = 2_000
_MOST_ROWS = 8
_KINDS = ["task", "wait.get", "wait.put", "wait.lock", "copy", "pickle", "start"]


class _Numbers:
    """Texts, each once, and their numbers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def page(run: Run) -> str:
    with open(_TEMPLATE, encoding="utf-8") as file:
        template = file.read()
    data = json.dumps(_data(run), separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("@DATA@", data)


def _data(run: Run) -> dict[str, Any]:
    summary = summarise(run)
    names, texts = _Numbers(), _Numbers()
    sentences = list(summary.sentences)
    shown = _longest(run, sentences)
    lanes, spans, lane_of = [], [], {}
    for lane, process in enumerate(run.processes):
        placed, count = _rows(process)
        lane_of[process.pid] = lane
        for span in process.spans:
            if id(span) in shown:
                spans.append(_columns(span, lane, placed[id(span)], names, texts))
        about = {"pid": process.own_pid, "name": process.name, "how": process.how, "lost": process.lost}
        lanes.append({**about, "began": process.began // 1000, "ended": process.ended // 1000, "rows": count})
    arrows = run.arrows[:MOST_ARROWS]
    if len(arrows) < len(run.arrows):
        sentences.append(f"The picture has the arrows of the first {len(arrows)} of {len(run.arrows)} messages.")
    return {
        "command": " ".join(map(os.path.basename, run.command)),
        "end": max(run.ended // 1000, 1),
        "sentences": sentences,
        "kinds": _KINDS,
        "names": names.texts,
        "texts": texts.texts,
        "lanes": lanes,
        "spans": spans,
        "arrows": [[lane_of[a.put_by], a.put // 1000, lane_of[a.got_by], a.got // 1000] for a in arrows],
        "memory": _memory(run),
        "workers": [
            [
                worker.process.name,
                worker.process.own_pid,
                worker.tasks,
                worker.failed,
                *(n // 1000 for n in (worker.task, worker.transport, worker.waiting, worker.alive)),
            ]
            for worker in summary.workers
        ],
    }


def _longest(run: Run, sentences: list[str]) -> set[int]:
    """Return the identities of the spans to show."""
    every = [span for process in run.processes for span in process.spans]
    if len(every) > MOST_SPANS:
        sentences.append(f"The picture has the {MOST_SPANS} longest of {len(every)} spans.")
        every = sorted(every, key=lambda span: -span.duration)[:MOST_SPANS]
    return {id(span) for span in every}


def _rows(process: Process) -> tuple[dict[int, int], int]:
    """Return the row of each span by its identity, and how many rows there are: spans nest in a thread."""
    by_thread: dict[int, list[Span]] = defaultdict(list)
    for span in process.spans:
        by_thread[span.thread].append(span)
    placed: dict[int, int] = {}
    first = 0
    for thread in sorted(by_thread, key=lambda each: each != process.pid):
        ends: list[int] = []
        deepest = 0
        for span in sorted(by_thread[thread], key=lambda span: (span.start, -span.duration)):
            while ends and ends[-1] <= span.start:
                ends.pop()
            row = min(first + len(ends), _MOST_ROWS - 1)
            ends.append(span.end)
            deepest = max(deepest, len(ends))
            placed[id(span)] = row
        first = min(first + deepest, _MOST_ROWS - 1)
    return placed, max(placed.values(), default=0) + 1


def _columns(span: Span, lane: int, row: int, names: _Numbers, texts: _Numbers) -> list[int]:
    details = span.details
    columns = [lane, row, span.start // 1000, max(span.duration // 1000, 0), _KINDS.index(span.category)]
    columns += [names.of(span.name), texts.of(_text(span))]
    if span.category == "task":
        states = ("terminated", 4), ("retried", 3), ("killed", 2), ("error", 1)
        state = next((number for name, number in states if details.get(name)), 0)
        columns += [details.get("index", -1), details.get("items", 1), state]
        columns += [
            details.get(f"{kind}_bytes", 0) for kind in ("argument", "result", "shared_argument", "shared_result")
        ]
    return columns


def _text(span: Span) -> str:
    parts = []
    for name, value in span.details.items():
        if name.endswith("bytes"):
            if value or not name.startswith("shared"):
                parts.append(f"{name.replace('_bytes', '').replace('bytes', 'size').replace('_', ' ')}: {size(value)}")
        elif value is True:
            parts.append(name)
        elif value is not False:
            parts.append(f"{name}: {value}")
    return ", ".join(parts)


def _memory(run: Run) -> list[list[int]]:
    every = max(1, len(run.samples) // MOST_SAMPLES)
    return [[s.time // 1000, s.used, s.in_flight, s.cached, sum(s.resident.values())] for s in run.samples[::every]]
