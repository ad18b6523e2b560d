"""How far the ranks are, in a line at the bottom of a terminal; drawn by rich, and only where that is installed.

The ranks' own lines go through the same console, above it: nothing is written in the middle of anything.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["shown"]


@contextmanager
def shown(total: int, ended: Callable[[], int]) -> Iterator[None]:
    """
    While this is entered, standard error, being a terminal, shows how many of *total* ranks have *ended*.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    class Ranks(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            # Asked whenever the line is drawn anew, so that nobody has to tell.
            for task in self.tasks:
                task.completed = ended()
            yield from super().get_renderables()

    # This very stream, as what is called sys.stderr is another one below.
    console = Console(file=sys.stderr)
    columns = (TextColumn("ranks ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Ranks(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    progress.add_task("", total=total)
    before = sys.stdout, sys.stderr
    progress.start()
    try:
        # What does not go to a terminal cannot disturb one.
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if stream.isatty():
                setattr(sys, name, _Above(console))
        yield
    finally:
        sys.stdout, sys.stderr = before
        with suppress(OSError):  # the terminal has gone
            progress.stop()


class _Above(io.TextIOBase):
    """A stream whose lines appear above what the console shows all the time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""

    def write(self, text: str) -> int:
        from rich.text import Text

        lines, end, self._rest = (self._rest + text).rpartition("\n")
        if end:
            self._console.print(Text.from_ansi(lines), soft_wrap=True)
        return len(text)

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._console.encoding
