"""Draw the plots of docs/performance.md from docs/performance.json: `python -m benchmarks.plots [JSON [FOLDER]]`.

The plot of docs/latency.md is drawn from docs/latency.json. All are readable in black and white: each peer has its own
marker and dash, and its name stands at the end of its line or in the legend. Points are medians. The thick line is
mp-all's; the band around it lies between the quartiles.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

from benchmarks import record
from benchmarks.record import Record

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

FOLDER = record.ROOT / "docs" / "img"

# Peer: name in the plot, marker, dash, colour. Similar peers share a hue; the floor is no peer and has no marker.
STYLES: dict[str, tuple[str, str, Any, str]] = {
    "ours": ("mp-all", "o", "-", "#b40426"),
    "stdlib": ("multiprocessing", "s", "-", "#222222"),
    "by hand": ("SharedMemory, reused", "v", (0, (1, 1)), "#2b6ca3"),
    "torch fd": ("torch, file_descriptor", "^", "--", "#c46210"),
    "torch fs": ("torch, file_system", "D", "--", "#c46210"),
    "by hand, new": ("SharedMemory, new", "<", (0, (1, 1)), "#2b6ca3"),
    "SharedArray": ("SharedArray", ">", (0, (1, 1)), "#2b6ca3"),
    "iceoryx2": ("iceoryx2", "X", "-.", "#2e7d32"),
    "faster-fifo": ("faster-fifo", "P", "-.", "#2e7d32"),
    "raw pipe": ("os.pipe, without pickle", "d", (0, (4, 3)), "#888888"),
    "Pool": ("Pool.apply", "p", (0, (5, 1, 1, 1)), "#222222"),
    "mpire": ("mpire", "h", (0, (5, 1, 1, 1)), "#6a3d9a"),
    "pebble": ("pebble", "H", (0, (5, 1, 1, 1)), "#6a3d9a"),
    "joblib": ("joblib", "d", (0, (5, 1, 1, 1)), "#6a3d9a"),
    "Ray": ("Ray actor", "*", (0, (5, 1, 1, 1)), "#6a3d9a"),
    "floor": ("memcpy and an int", "", (0, (4, 3)), "#888888"),
}


# Where there is little room: names, and the sizes at the axis.
SHORTER = {"by hand": "by hand", "torch fd": "torch", "Ray": "Ray"}
LEVEL: dict[str, Any] = {"rotation": 0, "ha": "center"}
SLANTED: dict[str, Any] = {"rotation": 30, "ha": "right"}
LABELLED = (200, 1 << 16, 1 << 20, 1 << 27)


@dataclass(frozen=True)
class Plot:
    """One plot: the lines of some rows over the size of their arrays."""

    name: str
    title: str
    rows: tuple[str, ...]
    of: Callable[[float, str, int], float]
    """The height of a point, computed from a value, its unit, and the size."""
    axis: str
    tick: Callable[[float], str]
    floor: str
    """The label of the floor in this plot."""
    only: tuple[str, ...] = ()
    """The peers to show; all of them by default."""
    size: tuple[float, float] = (8.6, 5.4)
    font: float = 10


def microseconds(value: float, unit: str, nbytes: int) -> float:
    return value * 1e6


def bytes_a_second(value: float, unit: str, nbytes: int) -> float:
    return value if unit == "B/s" else value * nbytes


def size_in_words(nbytes: float) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes:g} B"


def time_in_words(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:g} s"
    return f"{us / 1e3:g} ms" if us >= 1e3 else f"{us:g} µs"


def rate_in_words(rate: float) -> str:
    return f"{rate / 1e9:g} GB/s" if rate >= 1e9 else f"{rate / 1e6:g} MB/s"


PLOTS = [
    # The first screen: five lines and large letters, because a telephone shows it 390 pixels wide.
    Plot(
        "hero",
        "Send a new array, get a number back",
        ("P1", "P2"),
        microseconds,
        "time (less is better)",
        time_in_words,
        "",
        only=("ours", "stdlib", "by hand", "torch fd", "Ray"),
        size=(6.4, 4.6),
        font=13.5,
    ),
    Plot(
        "latency",
        "Round trip of a fresh array: there, and a number back",
        ("P1", "P2"),
        microseconds,
        "time (less is better)",
        time_in_words,
        "memcpy and an int",
    ),
    Plot(
        "throughput",
        "Stream of fresh arrays through a queue for eight",
        ("P5",),
        bytes_a_second,
        "throughput (more is better)",
        rate_in_words,
        "memcpy alone",
    ),
]


class Point(NamedTuple):
    x: int
    y: float
    low: float
    high: float


def series(found: Record, plot: Plot) -> dict[str, list[Point]]:
    """Return the points of each peer, by size."""
    points: dict[str, list[Point]] = {}
    for entry in found.of(*plot.rows):
        if entry.nbytes is not None:
            for name, figure in entry.figures.items():
                heights = (plot.of(y, figure.unit, entry.nbytes) for y in (figure.median, figure.low, figure.high))
                points.setdefault(name, []).append(Point(entry.nbytes, *heights))
    return {name: sorted(points[name]) for name in STYLES if name in points and name in (plot.only or STYLES)}


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """
    Return places for labels, as near as possible to those *wanted* and at least *gap* from each other.

    Labels that would touch form a group around the mean of their wanted places.
    """
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    groups: list[list[int]] = []

    def start(group: list[int]) -> float:
        return sum(wanted[k] for k in group) / len(group) - gap * (len(group) - 1) / 2

    for k in order:
        groups.append([k])
        while len(groups) > 1 and start(groups[-2]) + gap * len(groups[-2]) > start(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [0.0] * len(wanted)
    for group in groups:
        for place, k in enumerate(group):
            places[k] = start(group) + gap * place
    return places


def one(found: Record, plot: Plot, path: Path) -> None:
    """Draw *plot* into *path*; the suffix determines the format."""
    lines = series(found, plot)
    pyplot.rcParams.update({"font.size": plot.font, "svg.hashsalt": "mp-all", "svg.fonttype": "path"})
    figure, axes = pyplot.subplots(figsize=plot.size, layout="constrained")
    axes.set(xscale="log", yscale="log", ylabel=plot.axis, xlabel="size of the array")
    axes.set_title(plot.title, loc="left", fontsize=plot.font + 1)
    for name, points in lines.items():
        _, marker, dash, colour = STYLES[name]
        thick = {"ours": 2.8, "floor": 1.6}.get(name, 1.1) * plot.font / 10
        x, y, low, high = zip(*points, strict=True)
        if name == "ours":
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, y, marker=marker, linestyle=dash, color=colour, linewidth=thick, markersize=5 + (name == "ours"))
    sizes = sorted({point.x for points in lines.values() for point in points})
    if plot.only:
        sizes = [size for size in sizes if size in LABELLED]
    axes.set_xticks(sizes, [size_in_words(size) for size in sizes], **LEVEL if plot.only else SLANTED)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plot.tick(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    label(axes, lines, plot)
    save(figure, path)
    pyplot.close(figure)


def save(figure: Any, path: Path) -> None:
    """Write the picture. An SVG gets two digits behind the point, and a path on one line."""
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    if path.suffix == ".svg":
        path.write_text(smaller(path.read_text()))


def smaller(svg: str) -> str:
    """
    Shorten a picture of matplotlib.

    >>> smaller('<path d="M 80.891046 335.871642 \\nL 5 1 \\nz\\n"/>\\n  <g>')
    '<path d="M 80.89 335.87 L 5 1 z"/>\\n<g>'
    """
    svg = re.sub(r"(?<!scale\()\b(\d+\.\d\d)\d{3,}", r"\1", svg)
    return re.sub(r"\n +(?=<)", "\n", re.sub(r"\n(?=\")", "", re.sub(r" \n(?=[A-Zz])", " ", svg)))


def label(axes: Any, lines: dict[str, list[Point]], plot: Plot) -> None:
    """Put each peer's name to the right of its line, and connect both with a thin line."""
    there, back = axes.transData.transform, axes.transData.inverted().transform
    right = axes.transAxes.transform((1, 0))[0]
    names = list(lines)
    ends = [there(lines[name][-1][:2]) for name in names]
    line_height = axes.figure.dpi / 72 * 1.25 * plot.font
    for name, end, y in zip(names, ends, apart([end[1] for end in ends], line_height), strict=True):
        text, _, _, colour = STYLES[name]
        leader = [back(point) for point in ((end[0] + 6, end[1]), (right + 24, y))]
        axes.plot(*zip(*leader, strict=True), color=colour, linewidth=0.5, clip_on=False, scalex=False, scaley=False)
        axes.annotate(
            plot.floor if name == "floor" else SHORTER.get(name, text) if plot.only else text,
            xy=back((right + 27, y)),
            va="center",
            color=colour,
            fontsize=plot.font - 1,
            fontweight="bold" if name == "ours" else "normal",
            annotation_clip=False,
        )


MESSAGES = {
    "round trip, an int": "an int",
    "round trip, an array of 200 B": "an array of 200 B",
    "round trip, an int, on one core": "an int,\nboth processes on one core",
    "round trip, an int, beside four busy processes": "an int,\nbeside four busy processes",
}
"""The lines of the plot of small messages: the name in the record, and in the plot."""


def small_messages(found: Record, path: Path) -> None:
    """Draw the round trips of small messages: a line for each situation, a mark for each peer."""
    entries = [entry for what in reversed(MESSAGES) if (entry := found.find(what)) is not None]
    pyplot.rcParams.update({"font.size": 10, "svg.hashsalt": "mp-all", "svg.fonttype": "path"})
    figure, axes = pyplot.subplots(figsize=(8.6, 4.2), layout="constrained")
    for name, (text, marker, _, colour) in STYLES.items():
        there = [(k, entry.figures[name]) for k, entry in enumerate(entries) if name in entry.figures]
        if not there:
            continue
        places = [k for k, _ in there]
        low, middle, high = zip(*((1e6 * f.low, 1e6 * f.median, 1e6 * f.high) for _, f in there), strict=True)
        axes.hlines(places, low, high, color=colour, linewidth=2)
        size = 11 if name == "ours" else 8
        axes.plot(middle, places, linestyle="", marker=marker, markersize=size, color=colour, label=text)
        if name == "ours":
            for place, value in zip(places, middle, strict=True):
                at = (value, place)
                axes.annotate(f"{value:.3g} µs", at, (0, 11), textcoords="offset points", ha="center", color=colour)
    axes.set(xscale="log", xlabel="time there and back (less is better)", ylim=(-0.6, len(entries) - 0.4))
    left, right = axes.get_xlim()
    axes.set_xlim(left * 0.7, right)
    axes.set_yticks(range(len(entries)), [MESSAGES[entry.what] for entry in entries])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_in_words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("A small message on two SimpleQueues, there and back", loc="left", fontsize=11)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(figure, path)
    pyplot.close(figure)


def draw(found: Record, folder: Path = FOLDER, ending: str = "svg") -> list[Path]:
    """Draw every plot for which *found* has lines, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for plot in PLOTS:
        if series(found, plot):
            drawn.append(folder / f"{plot.name}.{ending}")
            one(found, plot, drawn[-1])
    if any(found.find(what) for what in MESSAGES if "200" not in what):  # P1 has the same array
        drawn.append(folder / f"messages.{ending}")
        small_messages(found, drawn[-1])
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("json", type=Path, nargs="?", default=record.SHOWN)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--png", action="store_true", help="as PNG instead of SVG")
    options = parser.parse_args()
    for path in draw(record.read(options.json), options.folder, "png" if options.png else "svg"):
        print(path)


if __name__ == "__main__":
    main()
