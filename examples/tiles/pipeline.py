"""
Pass a picture, tile by tile, through a reader, several workers and a collector connected by bounded queues.

The parent only supervises. It never reads from a queue, so no process that dies in the middle of a message
can block it: it waits for news from the collector and for the death of any process, whichever comes first.
The module to run on is an argument: `multiprocessing`, or a module with the same names.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from filters import FILTERS
from grid import Grid, Tile
from picture import padded_sky

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    TileQueue = Queue[Tile | None]  # `None` says that its sender has no more

DEPTH = 4  # tiles that may wait in a queue: enough to keep all processes busy, and memory stays bounded
PATIENCE = 60.0  # seconds without news after which a wait ends


class PipelineError(RuntimeError):
    """The run has ended early; the message names the process."""


@dataclass(frozen=True)
class Job:
    """The parameters that every process of a run needs."""

    grid: Grid
    filter: str
    workers: int
    start: str
    mosaic: Path


class Outcome(NamedTuple):
    """The time from the first tile to the last, and the result."""

    seconds: float
    megabytes: float
    sha256: str


def read(job: Job, tiles: TileQueue, ready: Barrier) -> None:
    """Cut the picture into tiles and send them."""
    sky = padded_sky(job.grid)
    _begin(ready)
    for tile in job.grid.cut(sky):
        tiles.put(tile, timeout=PATIENCE)
    for _ in range(job.workers):
        tiles.put(None, timeout=PATIENCE)


def work(job: Job, tiles: TileQueue, finished: TileQueue, ready: Barrier) -> None:
    """Filter tiles as they come, and send them on without their halo."""
    apply = FILTERS[job.filter]
    _begin(ready)
    for tile in _until_done(tiles, senders=1):
        result = tile._replace(pixels=apply(tile.pixels))
        finished.put(job.grid.trim(result), timeout=PATIENCE)
    finished.put(None, timeout=PATIENCE)


def collect(job: Job, finished: TileQueue, ready: Barrier, news: Connection) -> None:
    """Put the tiles together, report each one to the parent, and save the mosaic."""
    # Written once before the clock starts, because fresh memory is slow at its first write.
    # NaN equals nothing: a missing tile cannot go unnoticed.
    mosaic = np.full(job.grid.shape, np.nan, np.float32)
    _begin(ready)
    started = time.perf_counter()
    for tile in _until_done(finished, senders=job.workers):
        job.grid.paste(tile, mosaic)
        news.send(1)
    seconds = time.perf_counter() - started
    np.save(job.mosaic, mosaic)
    news.send(Outcome(seconds, mosaic.nbytes / 1e6, hashlib.sha256(mosaic.data).hexdigest()))


def run(mp: ModuleType, job: Job, progress: Callable[[int], object]) -> Outcome:
    """Do the job on the module *mp*, and call *progress* for every finished tile."""
    context = mp.get_context(job.start)
    tiles, finished = context.Queue(DEPTH), context.Queue(DEPTH)
    ready = context.Barrier(job.workers + 2)
    inbox, news = context.Pipe(duplex=False)
    processes: list[BaseProcess] = [
        context.Process(name="reader", target=read, args=(job, tiles, ready)),
        context.Process(name="collector", target=collect, args=(job, finished, ready, news)),
    ]
    for i in range(job.workers):
        processes.append(context.Process(name=f"worker {i}", target=work, args=(job, tiles, finished, ready)))
    try:
        for process in processes:
            process.start()
        return _supervise(mp, processes, inbox, progress)
    finally:
        _stop(processes)


def _begin(ready: Barrier) -> None:
    """Leave Ctrl-C to the parent, and wait until all processes have imported and loaded their needs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready.wait(PATIENCE)


def _until_done(queue: TileQueue, senders: int) -> Iterator[Tile]:
    """Yield tiles until every sender has sent its `None`."""
    while senders:
        item = queue.get(timeout=PATIENCE)
        if item is None:
            senders -= 1
        else:
            yield item


def _supervise(
    mp: ModuleType, processes: list[BaseProcess], inbox: Connection, progress: Callable[[int], object]
) -> Outcome:
    """Pass on the collector's news until all processes have ended; the first failure ends the run."""
    outcome = None
    while True:
        alive = [process.sentinel for process in processes if process.exitcode is None]
        for process in processes:
            if process.exitcode:  # the process itself has printed its traceback
                raise PipelineError(f"{process.name} ended with exit code {process.exitcode}")
        if outcome and not alive:
            return outcome
        happened = mp.connection.wait([inbox, *alive], timeout=PATIENCE)
        if not happened:
            raise PipelineError(f"nothing has happened for {PATIENCE:.0f} seconds")
        if inbox in happened:
            word = inbox.recv()
            if isinstance(word, Outcome):
                outcome = word
            else:
                progress(word)


def _stop(processes: list[BaseProcess]) -> None:
    """End the processes that still run: after a good run, none do."""
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.terminate()
    for process in started:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join(5)
