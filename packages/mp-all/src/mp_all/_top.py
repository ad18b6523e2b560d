"""`python -m mp_all top`: a live view of the processes that share memory, with rich or as plain text."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mp_all._limits import size
from mp_all._report import report_of_others
from mp_all._sessions import NamedArray
from mp_spawn.command.seconds import seconds

COLUMNS = ("pid", "holds", "change", "blocks", "in flight", "oldest", "cached", "command")
LEFT = ("command",)
CLEAR = "\x1b[H\x1b[J"
MOST_CHANNELS = 5


class Change:
    """The change of each process's memory since this view first saw it: a leak shows as a number that only grows."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}

    def of(self, process: dict[str, Any]) -> str:
        """Return the change of held and in-flight bytes, with a sign; "" for none."""
        now = process["held_bytes"] + process["in_flight_bytes"]
        change = now - self._first.setdefault((process["session"], process["pid"]), now)
        return "" if change == 0 else f"{'+' if change > 0 else '-'}{size(abs(change))}"


def age(seconds: float) -> str:
    """
    Return *seconds* for people.

    >>> age(0.4), age(75), age(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def heading(session: dict[str, Any]) -> str:
    """Return a line about a session: its manager, the manager's restarts, and the cache."""
    manager = f"manager {session['manager']}" if session["manager"] else "no manager"
    problem = f" ({session['manager_problem']})" if session["manager_problem"] else ""
    return (
        f"session {session['id'][:8]}  processes: {session['processes']}  {manager}{problem}, "
        f"restarts: {session['manager_restarts']}  cached: {size(session['cached_bytes'])} "
        f"of {size(session['cache_limit'])}"
    )


def rows(report: dict[str, Any], session: str, change: Change) -> list[tuple[str, ...]]:
    """Return the cells of a session's processes: those with the oldest unread message first, then the largest."""

    def rank(process: dict[str, Any]) -> tuple[float, int]:
        return (-process["oldest"]["seconds"] if process["oldest"] else 0, -process["held_bytes"])

    return [
        (
            str(process["pid"]),
            size(process["held_bytes"]),
            change.of(process),
            str(process["held_blocks"]),
            size(process["in_flight_bytes"]) if process["oldest"] else "",
            age(process["oldest"]["seconds"]) if process["oldest"] else "",
            size(process["cached_bytes"]) if process["cached_bytes"] else "",
            process["command"] if process["attached"] else "(has ended; its messages are unread)",
        )
        for process in sorted((p for p in report["processes"] if p["session"] == session), key=rank)
    ]


def oldest_message(report: dict[str, Any]) -> str:
    """Return a line about the oldest message that no process has received; "" if there is none."""
    waiting = [process for process in report["processes"] if process["oldest"]]
    if not waiting:
        return ""
    process = max(waiting, key=lambda each: each["oldest"]["seconds"])
    oldest = process["oldest"]
    line = f" in {oldest['line']}" if oldest["line"] else "; MP_TRACE=1 in its environment shows the line"
    return (
        f"oldest unread: {size(oldest['bytes'])}, sent {age(oldest['seconds'])} ago by process {process['pid']}{line}"
    )


def device_memory(report: dict[str, Any]) -> list[str]:
    """Return a line about each device and process that holds memory of it, those with the most of it first."""
    held = sorted(report["devices"], key=lambda each: -(each["own_bytes"] + each["held_bytes"]))
    return [
        f"device {each['device'][:8]}: process {each['pid']} holds {size(each['held_bytes'])} of other processes, and "
        f"shares {size(each['own_bytes'])} of its own"
        for each in held
    ]


def full_channels(report: dict[str, Any]) -> list[str]:
    """Return a line about each pipe or queue with unread messages, those with the most of them first."""
    waiting = sorted((each for each in report["channels"] if each["unread"]), key=lambda each: -each["unread"])
    lines = [
        f"unread messages: {each['unread']}, {size(each['bytes'])}, in a pipe or queue of processes "
        f"{' '.join(map(str, each['pids']))}"
        for each in waiting[:MOST_CHANNELS]
    ]
    more = len(waiting) - len(lines)
    return lines + ([f"unread messages in {more} more pipes or queues"] if more else [])


def plain(report: dict[str, Any], change: Change, width: int) -> str:
    """Return the view as text, cut to *width* columns."""
    lines = []
    for session in report["sessions"]:
        if not session["alive"]:
            continue
        lines.append(heading(session))
        cells = [COLUMNS, *rows(report, session["id"], change)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(COLUMNS))]
        for row in cells:
            padded = [
                cell.ljust(widths[k]) if COLUMNS[k] in LEFT else cell.rjust(widths[k]) for k, cell in enumerate(row)
            ]
            lines.append("  " + "  ".join(padded).rstrip())
        lines.append("")
    lines += _last_lines(report, bool(lines))
    return "\n".join(line[:width] for line in lines)


def _last_lines(report: dict[str, Any], any_session: bool) -> list[str]:
    named = [str(NamedArray(*each.values())) for each in report["named"]]
    if not any_session:
        return ["no process of this user shares memory now", *named]
    lines = (*named, *device_memory(report), oldest_message(report), *full_channels(report))
    return [line for line in lines if line]


def reports(count: int, interval: float) -> Iterator[dict[str, Any]]:
    """Yield a report each *interval* seconds, *count* of them, 0 for no end; the key q ends it."""
    done = 0
    while True:
        yield report_of_others()
        done += 1
        if done == count or _is_ended_within(interval):
            return


def _is_ended_within(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if not select.select([0] if os.isatty(0) else [], [], [], left)[0]:
            return False
        if os.read(0, 1) in (b"q", b""):
            return True
    return False


@contextmanager
def single_keys() -> Iterator[None]:
    """Let a terminal give each key at once, and not show it; a signal that ends this process restores the terminal."""
    if not os.isatty(0):
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for signum in ending:
        signal.signal(signum, _end)
    tty.setcbreak(0)
    try:
        yield
    finally:
        with suppress(termios.error):  # it has gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for signum in ending:
            signal.signal(signum, signal.SIG_DFL)


def _end(signum: int, frame: object) -> None:
    sys.exit(128 + signum)


def is_terminal() -> bool:
    """Tell whether the standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def show_plain(count: int, interval: float) -> None:
    """Print the view again and again, in place on a terminal."""
    change = Change()
    on_terminal = is_terminal()
    for report in reports(count, interval):
        width = (os.get_terminal_size().columns or 80) if on_terminal else 1000  # a new one may not know its size
        print((CLEAR if on_terminal else "") + plain(report, change, width), flush=True)


def rich_view(report: dict[str, Any], change: Change) -> Any:
    """Return the view as something that rich draws."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = []
    for session in report["sessions"]:
        if not session["alive"]:
            continue
        table = Table(title=Text(heading(session)), title_justify="left", title_style="bold", expand=True, box=None)
        for name in COLUMNS:
            left = name in LEFT
            table.add_column(
                name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis", ratio=1 if left else None
            )
        for row in rows(report, session["id"], change):
            table.add_row(*(Text(cell) for cell in row), style="yellow" if row[5] else "")
        parts += [table, Text("")]
    last = _last_lines(report, bool(parts))
    return Group(*parts, *(Text(line, style="yellow" if line.startswith("oldest") else "") for line in last))


def show_rich(count: int, interval: float) -> None:
    """Draw the view with rich, in place."""
    from rich.live import Live

    change = Change()
    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        for report in reports(count, interval):
            live.update(rich_view(report, change), refresh=True)


def has_rich() -> bool:
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return False
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mp-all top", description="Show live who holds shared memory; q ends it.")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="SECONDS", help="time between views (default 2)"
    )
    parser.add_argument("--count", type=int, default=0, metavar="N", help="end after N views")
    parser.add_argument("--plain", action="store_true", help="plain text, even if rich is installed")
    options = parser.parse_args(arguments)
    if options.interval <= 0 or options.count < 0:
        parser.error("--interval must be more than 0, and --count 0 or more")
    show = show_plain if options.plain or not is_terminal() or not has_rich() else show_rich
    try:
        with single_keys():
            show(options.count, options.interval)
    except KeyboardInterrupt:
        pass
    return 0
