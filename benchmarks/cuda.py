"""`python -m benchmarks.cuda`: round trips of a device array, with mp_cuda and with torch. It needs a GPU.

Shared: the same array each time, so that both processes have its allocation open. New: a new array each time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import mp_all as mp
import mp_cuda

SIZES = (4 * 1024, 1024 * 1024, 64 * 1024 * 1024)
ROUNDS, WARM_UP = 300, 30
TARGET = 0.5


def echo(connection: Any) -> None:
    """Send every array back, until None arrives."""
    while (array := connection.recv()) is not None:
        connection.send(array)
        del array


def round_trips(make: Callable[[], Any], context: Any, new: bool, rounds: int = ROUNDS) -> list[float]:
    """Time *rounds* round trips of an array from *make*, in seconds each."""
    ours, theirs = context.Pipe()
    child = context.Process(target=echo, args=(theirs,))
    child.start()
    theirs.close()
    array = make()
    times = []
    for _ in range(WARM_UP + rounds):
        if new:
            array = make()
        start = time.perf_counter()
        ours.send(array)
        back = ours.recv()
        times.append(time.perf_counter() - start)
        del back
    ours.send(None)
    child.join()
    return times[WARM_UP:]


def device_name() -> str:
    """Return the name of the device. Exit if there is none, or only the stub driver of the tests."""
    if not mp_cuda.is_available():
        sys.exit("benchmarks.cuda needs a GPU, and there is no CUDA device here")
    name = dict(mp_cuda.device_report())["device 0"]
    if "STUB" in name:
        sys.exit("benchmarks.cuda needs a GPU; the stub driver of the tests measures nothing")
    return name


def main() -> None:
    print(device_name())
    print(*(f"{key}: {value}" for key, value in mp_cuda.device_report()), sep=" · ")
    try:
        import torch
        import torch.multiprocessing as torch_mp
    except ImportError:
        sys.exit("benchmarks.cuda compares with torch: pip install torch")
    for nbytes in SIZES:
        for new in (False, True):
            ours = round_trips(lambda n=nbytes: mp_cuda.empty(n, "uint8"), mp.get_context("spawn"), new)
            torchs = round_trips(
                lambda n=nbytes: torch.empty(n, dtype=torch.uint8, device="cuda"), torch_mp.get_context("spawn"), new
            )
            a, b = statistics.median(ours), statistics.median(torchs)
            kind = "new" if new else "shared"
            met = "met" if a <= TARGET * b else "NOT met"
            print(
                f"P10 {kind:6} {nbytes:>9} bytes: ours {a * 1e6:8.1f} µs, torch {b * 1e6:8.1f} µs, {a / b:.2f} ({met})"
            )


if __name__ == "__main__":
    main()
