"""The summary of a job that failed: a table by rich where that is installed, else a line per rank."""

from __future__ import annotations

import importlib.util
import sys
from typing import NamedTuple

__all__ = ["Row", "show"]


class Row(NamedTuple):
    """A rank, for people."""

    rank: int
    pid: int
    ended: str
    seconds: float
    failed: bool


def show(rows: list[Row]) -> None:
    """
    Write *rows* to standard error, in colour on a terminal only.
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
        # As Text, so that brackets in a reason are not taken for markup.
        style = "bold red" if row.failed else ""
        table.add_row(str(row.rank), str(row.pid), f"{row.seconds:.2f}", Text(row.ended), style=style)
    Console(stderr=True).print(table)
