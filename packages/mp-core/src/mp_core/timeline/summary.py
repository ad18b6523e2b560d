"""Sentences about a run that a person can act on, each with the numbers that it is computed from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from mp_core.timeline.run import Process, Run, Span

_LONGEST = 10
# A queue is named if its waits are at least this share of the run.
_WORTH = 0.05
# The last chunk should take no more than this share of the whole.
_LAST_CHUNK = 0.05
# A chunk should take this long, so that its transport does not count.
_LEAST_CHUNK_S = 0.001
# Advice is given for a start, or for transport, that takes at least this share of the run.
_COUNTS = 0.1
# The same memory that was copied for at least so many messages should be shared.
_REPEATED = 4
_LOCK_ADVICE = {
    "lock": "hold them for a shorter time",
    "semaphore": "hold them for a shorter time",
    "barrier": "the last to arrive takes that time",
}


@dataclass
class Worker:
    """The time of one process: nanoseconds of each kind, without those nested in a kind that is named before."""

    process: Process
    tasks: int
    failed: int
    task: int
    transport: int
    waiting: int

    @property
    def alive(self) -> int:
        return max(self.process.ended - self.process.began, 1)


@dataclass
class Summary:
    """The sentences, the workers, and the longest tasks with the processes that ran them."""

    sentences: list[str] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    longest: list[tuple[Process, Span]] = field(default_factory=list)


def duration(nanoseconds: float) -> str:
    """
    Return a time for people.

    >>> duration(1_500_000_000), duration(2_000_000), duration(3_500)
    ('1.5 s', '2 ms', '3.5 µs')
    """
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= unit:
            return (
                f"{nanoseconds / unit:.3g} {name}" if nanoseconds < 1000 * unit else f"{nanoseconds / unit:.0f} {name}"
            )
    return f"{nanoseconds:.0f} ns"


def size(nbytes: float) -> str:
    """
    Return a number of bytes for people.

    >>> size(10), size(3_000_000)
    ('10 B', '2.9 MiB')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes:.0f} B"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.0f} %"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def union(spans: list[Span], without: list[Span] | None = None) -> int:
    """
    Return the nanoseconds that the *spans* of a process cover and the spans *without* do not.

    >>> union([Span(0, 10, "task", "", 1), Span(5, 10, "task", "", 1)], [Span(2, 2, "copy", "", 1)])
    13
    """
    if without:
        return union([*spans, *without]) - union(without)
    covered, until = 0, -1
    for start, end in sorted((span.start, span.end) for span in spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


def summarise(run: Run) -> Summary:
    made = Summary()
    made.workers = [_worker(process) for process in run.processes if process.tasks]
    tasks = [(process, span) for process in run.processes for span in process.tasks]
    made.longest = sorted(tasks, key=lambda found: -found[1].duration)[:_LONGEST]
    count = _many(len(run.processes), "process").replace("processs", "processes")
    say = made.sentences.append
    if made.workers:
        _say_use(run, made, tasks)
        _say_first_task(run, made, tasks)
    else:
        say(f"The run took {duration(run.ended)}, in {count}.")
    _say_copies(run, made)
    if made.workers:
        _say_workers(run, made)
        _say_tasks(made, tasks)
    _say_queues(run, made)
    _say_locks(run, made)
    _say_memory(run, made)
    _say_nodes(run, made)
    for process in run.processes:
        if process.lost:
            kept = sum(1 for _ in process.spans)
            say(
                f"{process.name} ({process.own_pid}) lost its {process.lost} oldest events, and this report has the "
                f"newest ({kept} spans): ask for more with events={4 * process.lost}."
            )
    return made


def _say_use(run: Run, made: Summary, tasks: list[tuple[Process, Span]]) -> None:
    whole = sum(span.duration for _, span in tasks)
    processes = [worker.process for worker in made.workers]
    most = max(sum(each.began <= other.began < each.ended for each in processes) for other in processes)
    made.sentences.append(
        f"Tasks add up to {duration(whole)}; the run took {duration(run.ended)} on {_many(max(most, 1), 'worker')}: "
        f"{_share(whole, run.ended * max(most, 1))} of them used."
    )


def _say_first_task(run: Run, made: Summary, tasks: list[tuple[Process, Span]]) -> None:
    """Say when the first task began, and on what the time before it was spent."""
    process, first = min(tasks, key=lambda task: task[1].start)
    starts = [span for each in run.processes for span in each.spans if span.category == "start"]
    began = next((span.start for span in starts if span.details["pid"] == process.pid), process.began)
    spent = {"before its worker was started": began, "until that worker had started": process.began - began}
    spent["until the task had come"] = first.start - max(began, process.began)
    parts = [f"{duration(time)} {what}" for what, time in spent.items() if time > 0.01 * first.start]
    advice = ""
    if process.began - began > _COUNTS * run.ended:
        advice = ": keep a pool for several calls, or start workers by forkserver, whose imports are made once"
    made.sentences.append(f"The first task began after {duration(first.start)}: {', '.join(parts)}{advice}.")


def _say_copies(run: Run, made: Summary) -> None:
    """Say what was copied into shared memory, if that took long, and how to do without."""
    whole = sum(map(sum, run.copies.values()))
    if whole < _COUNTS * run.ended:
        return
    names = {process.pid: f"{process.name} ({process.own_pid})" for process in run.processes}
    (pid, _, nbytes), times = max(run.copies.items(), key=lambda found: sum(found[1]))
    copied = sum(key[2] * len(each) for key, each in run.copies.items())
    said = f"Copying {size(copied)} into shared memory took {duration(whole)}"
    if len(times) >= _REPEATED and 2 * sum(times) > whole:
        made.sentences.append(
            f"{said}: {names[pid]} copied the same {size(nbytes)} for {len(times)} messages. Share them once, by "
            "array = mp_all.share_memory(array), or give them to the workers by the initializer of the pool."
        )
    else:
        made.sentences.append(
            f"{said}: arrays of mp_all.shared.empty and its kin, or all arrays after "
            "mp_all.install_shared_allocator(), are sent without a copy."
        )


def _worker(process: Process) -> Worker:
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in process.spans:
        kinds[span.category.partition(".")[0]].append(span)
    transport = kinds["copy"] + kinds["pickle"]
    waits = kinds["wait"]
    return Worker(
        process,
        len(kinds["task"]),
        sum(1 for span in kinds["task"] if span.details.get("error") or span.details.get("killed")),
        union(kinds["task"], transport + waits),
        union(transport, waits),
        union(waits),
    )


def _say_workers(run: Run, made: Summary) -> None:
    workers = made.workers
    alive = sum(worker.alive for worker in workers)
    task, transport = sum(worker.task for worker in workers), sum(worker.transport for worker in workers)
    waiting = sum(worker.waiting for worker in workers)
    rest = max(alive - task - transport - waiting, 0)
    made.sentences.append(
        f"{_many(len(workers), 'worker')} lived for {duration(alive)} together: {_share(task, alive)} in tasks "
        f"({duration(task)}), {_share(transport, alive)} in transport ({duration(transport)} of copying and pickling "
        f"that took over 100 µs), {_share(waiting, alive)} waiting ({duration(waiting)}), {_share(rest, alive)} in "
        f"the rest ({duration(rest)}: imports, small messages, the end)."
    )
    for worker in workers:
        made.sentences.append(
            f"{worker.process.name} ({worker.process.own_pid}) ran {_many(worker.tasks, 'task')} for "
            f"{_share(worker.task, worker.alive)} of its {duration(worker.alive)}"
            + (f"; {worker.failed} of them failed" if worker.failed else "")
            + ("." if worker.process.how in ("ended", "was ended") else f"; it {worker.process.how}.")
        )


def _say_tasks(made: Summary, tasks: list[tuple[Process, Span]]) -> None:
    mean = sum(span.duration for _, span in tasks) / len(tasks)
    which = f"{_many(len(made.longest), 'longest task')} of {len(tasks)}" if len(tasks) > 1 else "task"
    made.sentences.append(f"The {which} (mean {duration(mean)}): {'; '.join(_longest(made))}.")
    calls: dict[str, list[tuple[Process, Span]]] = defaultdict(list)
    for process, span in tasks:
        calls[span.name].append((process, span))
    for name, found in calls.items():
        _say_chunks(made, name, found)


def _longest(made: Summary) -> list[str]:
    names = [span.name for _, span in made.longest]
    return [
        f"{'' if name == before else name + ' '}{duration(span.duration)}{_at(span)} in {process.name}"
        for before, name, (process, span) in zip(["", *names], names, made.longest, strict=False)
    ]


def _at(span: Span) -> str:
    return f" at index {span.details['index']}" if "index" in span.details else ""


def _say_chunks(made: Summary, name: str, found: list[tuple[Process, Span]]) -> None:
    work: dict[int, int] = defaultdict(int)
    for process, span in found:
        work[process.pid] += span.duration
    names = {process.pid: f"{process.name} ({process.own_pid})" for process, _ in found}
    whole = sum(work.values())
    items = sum(max(span.details.get("items", 1), 1) for _, span in found)
    longest_chunk = max(max(span.details.get("items", 1), 1) for _, span in found)
    workers = len(made.workers)
    most = max(work, key=lambda pid: work[pid])
    if workers > 1 and work[most] > 1.25 * whole / workers and longest_chunk > 1:
        fitting = max(1, int(_LAST_CHUNK * items / workers))
        if fitting < longest_chunk:
            made.sentences.append(
                f"{names[most]} had {_share(work[most], whole)} of the work of {name} ({duration(work[most])} "
                f"of {duration(whole)}), where an even share of {workers} workers is {_share(1, workers)}. Its "
                f"{items} items came in chunks of up to {longest_chunk}: chunksize={fitting} would make a chunk "
                f"{_share(fitting * workers, items)} of a worker's share."
            )
    mean = whole / items
    if longest_chunk == 1 and items >= 100 * workers and mean < 1e9 * _LEAST_CHUNK_S / 10:
        fitting = max(2, min(int(1e9 * _LEAST_CHUNK_S / max(mean, 1)), items // (4 * workers)))
        is_map = any(span.details.get("index") for _, span in found)
        made.sentences.append(
            f"The {items} tasks of {name} took {duration(mean)} each, so that sending them counts: "
            f"{'' if is_map else 'one call of map, in the place of a call for each, with '}chunksize={fitting} "
            f"would make tasks of {duration(mean * fitting)}."
        )


def _say_queues(run: Run, made: Summary) -> None:
    for queue in sorted(run.queues, key=lambda queue: -max(queue.full, queue.empty)):
        limit = f" of {queue.size} places" if queue.size else ""
        title = queue.title[0].upper() + queue.title[1:]
        if queue.full > _WORTH * run.ended:
            made.sentences.append(
                f"{title}{limit} was full: its writers waited {duration(queue.full)} for room, over {queue.puts} "
                f"messages. Its readers are the slow side: add readers, or make each message less work."
            )
        elif queue.empty > _WORTH * run.ended and queue.gets:
            made.sentences.append(
                f"{title} was empty: its readers waited {duration(queue.empty)}, over {queue.gets} messages. "
                f"Its writers are the slow side."
            )


def _say_locks(run: Run, made: Summary) -> None:
    waits: dict[str, list[int]] = defaultdict(list)
    for process in run.processes:
        for span in process.spans:
            if span.category == "wait.lock":
                waits[span.name].append(span.duration)
    for name, durations in waits.items():
        if sum(durations) > _WORTH * run.ended:
            made.sentences.append(
                f"Processes waited {duration(sum(durations))} at {name}s, in {_many(len(durations), 'wait')}: "
                f"{_LOCK_ADVICE.get(name, 'look at what they wait for')}."
            )


def _say_memory(run: Run, made: Summary) -> None:
    if not run.samples:
        return
    used = max(sample.used for sample in run.samples)
    resident = max(sum(sample.resident.values()) for sample in run.samples)
    made.sentences.append(
        f"At most {size(used)} of shared memory was in use, and the processes had {size(resident)} resident together "
        f"(pages that they share count for each)."
    )


def _say_nodes(run: Run, made: Summary) -> None:
    for name, error in run.nodes.items():
        made.sentences.append(
            f"The times of {name} may be off by {duration(error)}: half of the shortest round trip to its clock."
        )
