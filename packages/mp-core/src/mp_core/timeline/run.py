"""The contents of a folder of events: the processes of a run, their spans and messages, and the memory over time."""

from __future__ import annotations

import bisect
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from mp_core.timeline import events as kinds
from mp_core.timeline import memory, remote
from mp_core.timeline.events import Event, ProcessEvents

#: What the waits of workers are called.
IDLE = "wait for a task"


@dataclass
class Span:
    """Time of one thread; nanoseconds since the run began. *details* are for people and for `args` of a trace."""

    start: int
    duration: int
    category: str
    name: str
    thread: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.duration


@dataclass
class Process:
    """
    One process, from its start to its end; *how* it ended: "ended", "was killed" in a task, "still ran" at the end of
    the run, or "was ended" without a word of its own, as by a signal or by `os._exit`.
    """

    pid: int
    name: str
    began: int
    ended: int
    how: str
    lost: int
    spans: list[Span] = field(default_factory=list)

    @property
    def own_pid(self) -> int:
        """Its pid on its machine; `pid` is another number if that is another node."""
        return self.pid % kinds.NODE_PIDS

    @property
    def tasks(self) -> list[Span]:
        return [span for span in self.spans if span.category == "task"]


@dataclass
class Arrow:
    """A message: who has put it when, and who has got it."""

    ring: int
    put: int
    put_by: int
    put_thread: int
    got: int
    got_by: int
    got_thread: int
    nbytes: int


@dataclass
class Queue:
    """A queue that the run has made, or waited for: *line* of the program, and the waits of each side."""

    ring: int
    line: str = ""
    size: int = 0
    puts: int = 0
    gets: int = 0
    full: int = 0
    empty: int = 0
    #: Among those that the same line has made; 0 if it is the only one.
    number: int = 0

    @property
    def title(self) -> str:
        """Its name for people."""
        which = f"queue {self.number}" if self.number else "the queue"
        return f"{which} made in {self.line}" if self.line else f"the queue or pipe {self.ring:x}"


@dataclass
class Run:
    """
    A run; *began* is the time of its clock, and all other times are since then. *nodes* are other machines, each with
    the nanoseconds by which its times may be wrong.
    """

    path: str
    command: list[str]
    owner: int
    began: int
    ended: int
    processes: list[Process]
    arrows: list[Arrow]
    queues: list[Queue]
    samples: list[memory.Sample]
    nodes: dict[str, int]
    #: The durations of the copies of each memory into shared memory: its process, its mark and its size.
    copies: dict[tuple[int, int, int], list[int]]


def load(folder: str) -> Run:
    """Read a folder of events; the files of processes that were killed before their header was written are left out."""
    with open(os.path.join(folder, "about.json"), encoding="utf-8") as about_file:
        about = json.load(about_file)
    files = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".events"):
            with open(os.path.join(folder, name), "rb") as file:
                if (found := kinds.read(file.read())) is not None:
                    files.append(found)
    samples = []
    if os.path.exists(os.path.join(folder, memory.FILE)):
        with open(os.path.join(folder, memory.FILE), encoding="utf-8") as memory_file:
            samples = memory.read(memory_file.read())
    return _Reader(about, sorted(files, key=lambda file: file.began), samples, remote.read(folder)).run()


class _Reader:
    """Makes a `Run` of what the files have."""

    def __init__(
        self, about: dict[str, Any], files: list[ProcessEvents], samples: list[memory.Sample], nodes: dict[str, int]
    ) -> None:
        self.about, self.files, self.nodes = about, files, nodes
        self.zero = about["began"]
        self.names: dict[int, str] = {}
        self.starts: dict[int, tuple[int, int]] = {}
        self.answers: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.queues: dict[int, Queue] = {}
        self.puts: dict[tuple[int, int], tuple[int, ProcessEvents, Event]] = {}
        self.gets: list[tuple[ProcessEvents, Event]] = []
        self.blocks: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.done: set[tuple[int, int]] = set()
        self.copies: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        ends = [file.ended or max((event.end for event in file.events), default=file.began) for file in files]
        self.end = max([*ends, *(sample.time for sample in samples), self.zero])
        owner = next((file for file in files if file.pid == about["owner"] and file.ended), None)
        if owner is not None:
            self.end = owner.ended
        self.samples = [sample._replace(time=sample.time - self.zero) for sample in samples]
        for file in files:
            for event in file.events:
                self.note(file, event)

    def note(self, file: ProcessEvents, event: Event) -> None:
        """Take in what an event says about other processes."""
        if event.kind == kinds.START:
            self.names[event.a] = event.name
        elif event.kind == kinds.BLOCKS:
            self.blocks[file.pid, event.a, event.flags] = event.b, event.c
        elif event.kind == kinds.TASK:
            self.done.add((file.pid, event.a))
        elif event.kind in (kinds.ANSWER, kinds.LOST):
            self.answers[event.a, event.b].append((event.start, event.c, event.items))
        elif event.kind == kinds.MADE:
            queue = self.queue(event.a)
            queue.line, queue.size = event.name.replace(self.about["cwd"], ""), event.b
            others = [each for each in self.queues.values() if each.line == queue.line]
            if len(others) > 1:
                others[0].number, queue.number = 1, len(others)
        elif event.kind == kinds.PLACE:
            self.queue(event.a).full += event.duration
        elif event.flags & kinds.OF_POOL and event.kind == kinds.PUT:
            self.puts[event.a, event.b] = event.end, file, event
        elif event.flags & kinds.OF_POOL and event.kind == kinds.GET:
            self.gets.append((file, event))
        elif event.kind == kinds.PUT and event.a:
            queue = self.queue(event.a)
            queue.full += event.duration
            if event.flags & kinds.MESSAGE:
                queue.puts += 1
                self.puts[event.a, event.b] = event.end, file, event
        elif event.kind == kinds.GET:
            queue = self.queue(event.a)
            queue.empty += event.duration
            if event.flags & kinds.MESSAGE:
                queue.gets += 1
                self.gets.append((file, event))

    def queue(self, ring: int) -> Queue:
        if ring not in self.queues:
            self.queues[ring] = Queue(ring)
        return self.queues[ring]

    def run(self) -> Run:
        processes = [self.process(file) for file in self.files]
        by_pid = {process.pid: process for process in processes}
        for file in self.files:
            for event in file.events:
                if event.kind == kinds.LOST and event.a in by_pid and (event.a, event.b) not in self.done:
                    self.add_lost(by_pid[event.a], event)
        return Run(
            self.about["path"],
            self.about["command"],
            self.about["owner"],
            self.zero,
            self.end - self.zero,
            processes,
            self.arrows(),
            list(self.queues.values()),
            self.samples,
            self.nodes,
            self.copies,
        )

    def process(self, file: ProcessEvents) -> Process:
        last = max((event.end for event in file.events), default=file.began)
        node = file.pid // kinds.NODE_PIDS
        seen = [sample.time for sample in self.samples if file.pid in sample.resident]
        ended, how = file.ended, "ended"
        if not ended or ended > self.end:
            still = bool(seen) and seen[-1] == self.samples[-1].time
            ended = last if node else self.end if still or not seen else max(last, seen[-1] + self.zero)
            how = "still ran" if still else "was ended"
        name = self.names.get(file.pid) or file.name or f"process {file.pid}"
        if node:
            name += f" on {[*self.nodes][node - 1]}"
        process = Process(file.pid, name, file.began - self.zero, ended - self.zero, how, file.lost)
        process.spans = sorted(
            (span for event in file.events if (span := self.span(file, event)) is not None), key=lambda span: span.start
        )
        if file.idle and not file.ended:  # it was ended, or stayed, in a wait for a task
            start = file.idle - self.zero
            process.spans.append(Span(start, max(process.ended - start, 0), "wait.get", IDLE, file.pid))
        return process

    def span(self, file: ProcessEvents, event: Event) -> Span | None:
        """Return the span of an event; None if it is none."""
        name = event.name
        details: dict[str, Any] = {}
        if event.kind == kinds.TASK:
            category = "task"
            answers = self.answers.get((file.pid, event.a), [])
            at = bisect.bisect_left(answers, (event.end, 0, 0))  # a pid may be used again
            if at < len(answers):
                details = {"index": answers[at][1], "items": answers[at][2]}
            for what, direction, nbytes in (("argument", 0, event.b), ("result", kinds.INTO, event.c)):
                shared, copied = self.blocks.get((file.pid, event.a, direction), (0, 0))
                details |= {f"{what}_bytes": nbytes + copied, f"shared_{what}_bytes": shared}
            details |= {"error": bool(event.flags & kinds.FAILED), "killed": False}
        elif event.kind == kinds.START:
            category, name, details = "start", f"start {event.name}", {"pid": event.a}
        elif event.kind == kinds.IDLE:
            category, name = "wait.get", IDLE
        elif event.kind in (kinds.GET, kinds.PUT) and event.flags & kinds.WAITED:
            category = "wait.get" if event.kind == kinds.GET else "wait.put"
            name = "get" if event.kind == kinds.GET else "put"
            if event.a:
                details = {"queue": self.queue(event.a).title, "bytes": event.c}
        elif event.kind == kinds.PLACE:
            category, name, details = "wait.put", "put", {"queue": self.queue(event.a).title}
        elif event.kind == kinds.LOCK:
            category, name = "wait.lock", event.name or ("semaphore" if event.b else "lock")
        elif event.kind == kinds.COPY:
            category = "copy"
            name = "copy into shared memory" if event.flags & kinds.INTO else "copy out of shared memory"
            details = {"bytes": event.a}
            if event.flags & kinds.INTO:
                self.copies[file.pid, event.b, event.a].append(event.duration)
        elif event.kind == kinds.PICKLE:
            category, name = "pickle", "pickle" if event.flags & kinds.INTO else "unpickle"
            if event.a:
                name += ", with device memory"
                details = {"bytes": event.a}
        else:
            return None
        return Span(event.start - self.zero, event.duration, category, name, event.thread, details)

    def add_lost(self, process: Process, event: Event) -> None:
        """Add the task in which a worker died, or its pool was terminated: from the last that is known of it."""
        start = max((span.end for span in process.spans if span.thread == process.pid), default=process.began)
        details: dict[str, Any] = {"index": event.c, "items": event.items}
        end = event.start - self.zero
        if event.flags & kinds.TERMINATED:
            details["terminated"] = True
            if process.how == "ended":
                end = process.ended
            else:  # no sample has seen its end
                process.how, process.ended = "was ended", max(end, process.ended)
        else:
            details |= {"killed": True, "retried": bool(event.flags & kinds.RETRIED)}
            process.how, process.ended = "was killed", max(end, process.ended)
        end = max(end, start)
        process.spans.append(Span(start, end - start, "task", event.name, process.pid, details))

    def arrows(self) -> list[Arrow]:
        arrows = []
        for getter, got in self.gets:
            if (put := self.puts.get((got.a, got.b))) is not None:
                end, putter, event = put
                times = end - self.zero, putter.pid, event.thread, got.end - self.zero, getter.pid, got.thread
                arrows.append(Arrow(got.a, *times, got.c))
        return arrows
