"""The command's output for people: progress on a terminal while ranks run, and a table of the ranks at a failure.

tqdm draws the progress if it is installed, as for a pool. The ranks' own lines are written through it, above the
progress line, so that neither cuts the other.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TextIO

from mp_spawn.errors import Failure, ProcessException
from mp_spawn.output.destinations import Capture, Output, has_done, write_to
from mp_spawn.output.messages import messages, tell

REDRAW_EVERY_S = 0.1
BAR = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}"
# As the command timeout does.
TIMED_OUT = 124
RED = "\x1b[1;31m{}\x1b[0m"


class Row(NamedTuple):
    """A rank in the table."""

    rank: int
    pid: int
    ended: str
    seconds: float
    failed: bool


def write_end(
    output: Output,
    error: ProcessException | TimeoutError | None,
    rows: Callable[[ProcessException], list[Row]],
    is_given_up: Callable[[], bool],
) -> bool:
    """
    Write the captured output of all ranks, and how the job has ended, with the *rows* of a failure.

    Return False if some output is lost: nobody reads it, and *is_given_up* has said so.
    """
    is_written = not (output.is_given_up or output.is_writing())
    if isinstance(output, Capture):
        is_written = has_done(partial(_write_captured, output), is_given_up)
    if isinstance(error, TimeoutError):
        # With the stacks of the ranks.
        tell(f"mp-spawn: {error}", *getattr(error, "__notes__", ()))
    elif error is not None:
        _tell_failure(error.failures[0], rows(error))
    return messages.finish(is_given_up) and is_written


def _write_captured(output: Capture) -> None:
    """Write to the streams of this process what the ranks have written to theirs."""
    for rank, stream in output.written():
        try:
            write_to(getattr(sys, stream), output.data(rank, stream))
        except Exception as failed:  # the ranks may have ended well all the same
            tell(f"mp-spawn: the {stream} of rank {rank} cannot be written: {failed}")


def _tell_failure(first: Failure, rows: list[Row]) -> None:
    """Write the first failure and the table of all ranks to standard error, failed ranks in red on a terminal."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    lines = [text.rstrip("\n") for text in (first.traceback, first.stack) if text]
    lines.append(f"mp-spawn: {first.describe()}")
    for row in rows:
        line = f"rank {row.rank:<3}  pid {row.pid:<7}  {row.seconds:.2f} s  {row.ended}"
        lines.append(RED.format(line) if colours and row.failed else line)
    tell(*lines)


@contextmanager
def progress(total: int, ended: Callable[[], int], is_given_up: Callable[[], bool]) -> Iterator[None]:
    """
    Show how many of *total* ranks have *ended*, if standard error is a terminal, until the block ends. It ends beside a
    terminal that has stopped once *is_given_up* says so.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield
        return
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # no thread of its own

    # A handler may write while its own thread writes. tqdm's own lock is one between processes.
    Bar.set_lock(threading.RLock())
    before, over = (sys.stdout, sys.stderr), threading.Event()
    columns, rows = shutil.get_terminal_size()  # tqdm draws nothing on a terminal that does not know its size
    # Drawn by a thread only: with a delay, not here.
    size = {"ncols": columns - 1, "nrows": rows, "delay": REDRAW_EVERY_S}
    begun: set[_Bytes] = set()
    try:
        bar = Bar(total=total, desc="ranks ended", file=_AtOnce(before[1]), leave=False, bar_format=BAR, **size)
    except ValueError as refusal:  # of a variable of tqdm
        tell(f"mp-spawn: no progress is shown: {refusal}")
        yield
        return
    bar.delay = 0

    def redraw() -> None:
        while not over.is_set():
            with Bar.get_lock():
                if not over.is_set() and not begun:
                    bar.n = ended()  # so that no rank has to notify it
                    bar.refresh()
            over.wait(REDRAW_EVERY_S)

    if bar.disable:  # by a variable of tqdm
        yield
        return

    def close() -> None:
        with suppress(OSError), Bar.get_lock():
            bar.close()

    redraws = threading.Thread(target=redraw, name="mp_spawn progress", daemon=True)
    try:
        # A stream that is no terminal needs no redirection.
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if stream.isatty():
                setattr(sys, name, _Above(_Bytes(bar, before[1], stream, begun)))
        redraws.start()
        yield
    finally:
        over.set()
        try:
            has_done(close, is_given_up)
        finally:
            sys.stdout, sys.stderr = before


class _AtOnce(io.TextIOBase):
    """Writes to a terminal past its buffer: what a terminal that has gone or stopped does not take stays nowhere."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        write_to(self._terminal, text.encode(self._terminal.encoding, "backslashreplace"))
        return len(text)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding


class _Bytes:
    """
    Writes bytes to a terminal above the progress line, which waits while a line there has not ended.

    It adds itself to the streams that have *begun* a line.
    """

    def __init__(self, bar: Any, drawn_on: TextIO, terminal: TextIO, begun: set[_Bytes]) -> None:
        self.terminal = terminal
        self._bar = bar
        self._drawn_on = drawn_on
        self._begun = begun

    def write(self, data: bytes | memoryview) -> int:
        if not data:
            return 0
        with self._bar.get_lock():
            if not self._begun:
                self._bar.clear(nolock=True)
                self._drawn_on.flush()
            write_to(self.terminal, data)
            if data[-1:] == b"\n":
                self._begun.clear()  # `Prefix` ends the line of the other stream first
            else:
                self._begun.add(self)
            if not self._begun:
                self._bar.refresh(nolock=True)
        return len(data)

    def flush(self) -> None: ...


class _Above(_AtOnce):
    """A stream whose lines appear on the terminal above the progress line."""

    def __init__(self, buffer: _Bytes) -> None:
        super().__init__(buffer.terminal)
        self.buffer = buffer
        self._rest = ""

    def write(self, text: str) -> int:
        lines, end, self._rest = (self._rest + text).rpartition("\n")
        self.buffer.write((lines + end).encode(self.encoding, "backslashreplace"))
        return len(text)
