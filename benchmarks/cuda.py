"""`python -m benchmarks.cuda`: round trips of a device array, with mp_cuda, torch and CuPy. It needs a GPU.

Shared: the same array each time, so that both processes have its allocation open. New: a new array each time. CuPy
alone has no way to share: its pickle copies the array through the host.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mp_all as mp
import mp_cuda

SIZES = (4 * 1024, 1024 * 1024, 64 * 1024 * 1024)
ROUNDS, WARM_UP, FEWEST = 300, 30, 5
OURS, TORCH = "mp_cuda", "torch"
TARGET = 0.5


class Library(NamedTuple):
    """Makes device arrays, and processes to send them to."""

    name: str
    make: Callable[[int], Any]
    context: Any
    pickled: bool = False  # by the library's own pickle, which copies through the host


def send(connection: Any, array: Any, pickled: bool) -> None:
    if pickled:
        connection.send_bytes(pickle.dumps(array, 5))
    else:
        connection.send(array)


def receive(connection: Any, pickled: bool) -> Any:
    return pickle.loads(connection.recv_bytes()) if pickled else connection.recv()


def echo(connection: Any, pickled: bool) -> None:
    """Send every array back, until None arrives."""
    while (array := receive(connection, pickled)) is not None:
        send(connection, array, pickled)
        del array


def round_trips(library: Library, nbytes: int, new: bool, seconds: float) -> list[float]:
    """Time round trips, in seconds each: ROUNDS of them, fewer if they take more than *seconds*."""
    ours, theirs = library.context.Pipe()
    child = library.context.Process(target=echo, args=(theirs, library.pickled))
    child.start()
    theirs.close()
    array = library.make(nbytes)
    times: list[float] = []
    begun = time.perf_counter()
    for done in range(WARM_UP + ROUNDS):
        if new:
            array = library.make(nbytes)
        start = time.perf_counter()
        send(ours, array, library.pickled)
        back = receive(ours, library.pickled)
        times.append(time.perf_counter() - start)
        del back
        if done >= FEWEST and time.perf_counter() - begun > seconds:
            break
    send(ours, None, library.pickled)
    child.join()
    return times[min(WARM_UP, len(times) // 2) :]


def libraries() -> Iterator[Library]:
    """Yield the libraries that are installed."""
    yield Library(OURS, lambda n: mp_cuda.empty(n, "uint8"), mp.get_context("spawn"))
    try:
        import torch
        import torch.multiprocessing as torch_mp

        yield Library(TORCH, lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"), torch_mp.get_context("spawn"))
    except ImportError:
        print("torch is not installed")
    try:
        import cupy

        yield Library("CuPy on mp_all", lambda n: cupy.empty(n, "uint8"), mp.get_context("spawn"))
        yield Library("CuPy pickled", lambda n: cupy.empty(n, "uint8"), multiprocessing.get_context("spawn"), True)
    except ImportError:
        print("CuPy is not installed")


def device_name() -> str:
    """Return the name of the device. Exit if there is none, or only the stub driver of the tests."""
    if not mp_cuda.is_available():
        sys.exit("benchmarks.cuda needs a GPU, and there is no CUDA device here")
    name = dict(mp_cuda.device_report())["device 0"]
    if "STUB" in name:
        sys.exit("benchmarks.cuda needs a GPU; the stub driver of the tests measures nothing")
    return name


def measure(sizes: tuple[int, ...], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each size and kind: the median of each library in microseconds."""
    found = list(libraries())
    each = seconds / (2 * len(sizes) * len(found))
    for nbytes in sizes:
        for new in (False, True):
            row: dict[str, float] = {}
            for library in found:
                row[library.name] = statistics.median(round_trips(library, nbytes, new, each * 0.7)) * 1e6
            yield {"kind": "new" if new else "shared", "bytes": nbytes, "microseconds": row}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--seconds", type=float, default=180, help="for all")
    asked = parser.parse_args()
    print(device_name())
    print(*(f"{key}: {value}" for key, value in mp_cuda.device_report()), sep=" · ")
    rows = []
    for row in measure(SIZES, asked.seconds):
        rows.append(row)
        row_text = ", ".join(f"{name} {value:.1f} µs" for name, value in row["microseconds"].items())
        met = ""
        if TORCH in row["microseconds"]:
            ratio = row["microseconds"][OURS] / row["microseconds"][TORCH]
            met = f"; {ratio:.2f} of torch ({'met' if ratio <= TARGET else 'NOT met'})"
        print(f"P10 {row['kind']:6} {row['bytes']:>9} bytes: {row_text}{met}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(rows))  # after each row, for a run that is ended


if __name__ == "__main__":
    main()
