"""The command's output for people: progress on a terminal while ranks run, and a table of the ranks at a failure.

rich draws both if it is installed. Without it, there is no progress, and the table is a line per rank. The ranks' own
lines are written by the same console, above the progress line, so that neither cuts the other.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Row", "progress", "show_table"]

REDRAW_EVERY_S = 0.1


class Row(NamedTuple):
    """A rank in the table."""

    rank: int
    pid: int
    ended: str
    seconds: float
    failed: bool


def show_table(rows: list[Row]) -> None:
    """
    Write *rows* to standard error, in colour if that is a terminal.
    """
    if importlib.util.find_spec("rich") is None:
        for row in rows:
            print(f"rank {row.rank}  pid {row.pid}  {row.seconds:.2f} s  {row.ended}", file=sys.stderr)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("rank", "pid", "seconds", "ended", box=box.SIMPLE)
    for row in rows:
        # As Text, because rich would read brackets in a reason as markup.
        style = "bold red" if row.failed else ""
        table.add_row(str(row.rank), str(row.pid), f"{row.seconds:.2f}", Text(row.ended), style=style)
    Console(stderr=True).print(table)


@contextmanager
def progress(total: int, ended: Callable[[], int]) -> Iterator[None]:
    """
    Show how many of *total* ranks have *ended*, if standard error is a terminal, until the block ends.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    class Ranks(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            # Called for each redraw, so that no rank has to notify it.
            for task in self.tasks:
                task.completed = ended()
            yield from super().get_renderables()

    # This stream object, because sys.stderr is replaced below.
    console = Console(file=sys.stderr)
    columns = (TextColumn("ranks ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # rich decides what a line has to erase before it holds the lock under which it draws: a thread of rich's own
    # would draw the progress line between the two, and the line would follow on it. So the redraws are ours, and they
    # and the lines take one lock. A handler may write while its own thread writes.
    drawing, over = threading.RLock(), threading.Event()
    bar = Ranks(
        *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    bar.add_task("", total=total)

    def redraw() -> None:
        while not over.wait(REDRAW_EVERY_S):
            try:
                with drawing:
                    if not over.is_set():
                        bar.refresh()
            except OSError:
                return  # the terminal has gone

    redraws = threading.Thread(target=redraw, name="mp_spawn progress", daemon=True)
    before = sys.stdout, sys.stderr
    try:
        # Before the progress line is drawn, so that no line of a rank goes beside it. A stream that is no terminal
        # needs no redirection.
        with drawing:
            for name, stream in zip(("stdout", "stderr"), before, strict=True):
                if stream.isatty():
                    setattr(sys, name, _Above(console, drawing))
            bar.start()
        redraws.start()
        yield
    finally:
        over.set()
        try:
            with drawing:
                bar.stop()
            before[1].flush()
        except OSError:
            _discard_output(before[1])
        finally:
            sys.stdout, sys.stderr = before


def _discard_output(stream: TextIO) -> None:
    """Discard what *stream* still holds: its terminal has gone, and Python 3.14 exits with 120 if a flush fails."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Above(io.TextIOBase):
    """A stream whose lines appear above the progress line of the console, one at a time with its redraws."""

    def __init__(self, console: Console, drawing: threading.RLock) -> None:
        self._console = console
        self._drawing = drawing
        self._rest = ""

    def write(self, text: str) -> int:
        from rich.text import Text

        lines, end, self._rest = (self._rest + text).rpartition("\n")
        if end:
            with self._drawing:
                self._console.print(Text.from_ansi(lines), soft_wrap=True)
        return len(text)

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._console.encoding
