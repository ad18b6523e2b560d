"""Run the measurements: a driver for each peer, in turns, so that a disturbance of the machine affects all peers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from benchmarks import install
from benchmarks.driver import Driver, WorkFailed
from benchmarks.peers import PEERS, Peer
from benchmarks.samples import Sample


@dataclass
class Task:
    """Work for one peer, done once in each round; its result is added to the sample called *label*."""

    label: str
    peer: str
    work: Callable[..., Any]
    args: tuple[Any, ...]
    rounds: int | None = None
    """Fewer rounds than the others, for slow work."""
    warm: bool = True
    """Whether it is done once before it counts; work that starts new processes gains nothing by it."""


class Bench:
    """The peers of a run; only those that the current row needs are running."""

    def __init__(self, peers: list[str], *, scale: float, long: bool) -> None:
        self.scale, self.long = scale, long
        self.asked = peers
        self.missing: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._drivers: dict[str, Driver] = {}

    def on_stage(self, names: Iterable[str]) -> None:
        """Start the requested peers in *names*, and end all others: some are busy even without requests."""
        wanted = [name for name in names if name in self.asked and name not in self.missing]
        for name in [name for name in self._drivers if name not in wanted]:
            self._drivers.pop(name).close()
        for name in wanted:
            if name not in self._drivers:
                try:
                    driver = Driver(name)
                except WorkFailed as error:
                    self.missing[name] = str(error)
                    continue
                if driver.missing:
                    self.missing[name] = because(PEERS[name], driver.missing)
                    driver.close()
                else:
                    self._drivers[name] = driver
                    self.versions[name] = driver.version

    def has(self, peer: str) -> bool:
        return peer in self._drivers

    def do(self, peer: str, work: Callable[..., Any], *args: Any, timeout: float = 120) -> Any:
        return self._drivers[peer].do(work, *args, timeout=timeout)

    def in_turns(self, what: str, tasks: list[Task], rounds: int, *, timeout: float = 120) -> dict[str, Sample]:
        """
        Do every task once to warm up and then *rounds* times, each round in another order.

        A missing peer is left out. A peer that fails is left out from then on, and `failed` has the reason.
        """
        tasks = [t for t in tasks if self.has(t.peer)]
        rounds = max(1, round(rounds * self.scale))
        samples: dict[str, Sample] = {t.label: Sample() for t in tasks}
        out: set[str] = set()
        with tqdm(total=(rounds + 1) * len(tasks), desc=what, leave=False, file=sys.stderr) as bar:
            for turn in range(rounds + 1):
                first = turn % len(tasks) if tasks else 0
                for task in tasks[first:] + tasks[:first]:
                    bar.update()
                    if task.label in out or turn > (task.rounds or rounds) or (turn == 0 and not task.warm):
                        continue
                    bar.set_postfix_str(task.label, refresh=False)
                    try:
                        result = self._drivers[task.peer].do(task.work, *task.args, timeout=timeout)
                    except WorkFailed as error:
                        out.add(task.label)
                        self.failed[f"{what}, {task.label}"] = str(error).strip().splitlines()[-1]
                        continue
                    if turn > 0:
                        samples[task.label].values += result if isinstance(result, list) else [result]
        return samples

    def close(self) -> None:
        self.on_stage([])


def because(peer: type[Peer], error: str) -> str:
    """Explain why a peer is missing: the error of its import, pip's error if any, and how to install it."""
    if said := install.why_not(peer.distribution):
        return f"{error}; pip: {said}"
    return f"{error}; `nox -s bench -- {peer.option}` installs it" if peer.option else error


@contextmanager
def opened(peers: list[str] | None = None, *, scale: float = 1.0, long: bool = False) -> Iterator[Bench]:
    """Yield a bench, and end its processes with the block."""
    bench = Bench(peers or list(PEERS), scale=scale, long=long)
    try:
        yield bench
    finally:
        bench.close()
