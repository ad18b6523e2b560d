"""`python -m benchmarks.cuda`: device arrays to another process, with mp_cuda, torch and CuPy. It needs a GPU.

Each message is answered with a number, but for those that are sent on. *The same* is one array each time, *new* a new
array. A state_dict has 100 tensors of 16 KiB in two allocations, a list 1000 arrays of 40 B in one.

With `--stub` the driver is the stub of the tests, whose calls cost almost nothing: so it measures mp_cuda's own cost,
and says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import gc
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
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of

KIB, MIB = 1024, 1024 * 1024
ROUNDS, WARM_UP, FEWEST = 300, 30, 5
WAIT_S = 60


class Library(NamedTuple):
    """Makes device arrays, and processes to send them to."""

    name: str
    make: Callable[[int], Any]
    parts: Callable[[Any, int, int], list[Any]]
    """Divide an array into so many arrays of so many bytes."""
    context: Any
    sends_on: bool = True
    pickled: bool = False  # by the library's own pickle, which copies through the host
    registers: bool = False  # torch with mp_cuda


class Row(NamedTuple):
    """Something to send, and what comes back."""

    name: str
    bound_us: float | None
    """The target on the stub driver, in microseconds."""
    make: Callable[[Library], Any]
    is_new: bool = False
    is_sent_on: bool = False


def state_dict(library: Library) -> dict[str, Any]:
    tensors = [tensor for _ in range(2) for tensor in library.parts(library.make(MIB), 50, 16 * KIB)]
    return {f"layer{i}.weight": tensor for i, tensor in enumerate(tensors)}


ROWS = [
    Row("the same 1 MiB, a number back", 12, lambda library: library.make(MIB)),
    Row("the same 64 MiB, a number back", 12, lambda library: library.make(64 * MIB)),
    Row("a new 4 KiB", 30, lambda library: library.make(4 * KIB), is_new=True),
    Row("a new 64 MiB", 30, lambda library: library.make(64 * MIB), is_new=True),
    Row("a state_dict of 100 tensors", 200, state_dict),
    Row("a list of 1000", 2000, lambda library: library.parts(library.make(64 * KIB), 1000, 40)),
    Row("the same 1 MiB there and back", None, lambda library: library.make(MIB), is_sent_on=True),
]
STREAMS = [("a stream of 4 KiB through Queue(8), each", 4 * KIB), ("a stream of 4 MiB through Queue(8), each", 4 * MIB)]


def send(connection: Any, thing: Any, pickled: bool) -> None:
    if pickled:
        connection.send_bytes(pickle.dumps(thing, 5))
    else:
        connection.send(thing)


def receive(connection: Any, pickled: bool) -> Any:
    return pickle.loads(connection.recv_bytes()) if pickled else connection.recv()


def answer(connection: Any, pickled: bool, is_sent_on: bool, registers: bool) -> None:
    """Answer every message with a number, or send it back, until None arrives."""
    if registers:
        mp_cuda.register("torch")
    while (thing := receive(connection, pickled)) is not None:
        send(connection, thing if is_sent_on else 1, pickled)
        del thing


def round_trips(library: Library, row: Row, seconds: float) -> list[float]:
    """Time messages, in seconds each: ROUNDS of them, fewer if they take more than *seconds*."""
    ours, theirs = library.context.Pipe()
    child = library.context.Process(target=answer, args=(theirs, library.pickled, row.is_sent_on, library.registers))
    child.start()
    theirs.close()
    thing = row.make(library)
    times: list[float] = []
    begun = time.perf_counter()
    for done in range(WARM_UP + ROUNDS):
        if row.is_new:
            thing = row.make(library)
        start = time.perf_counter()
        send(ours, thing, library.pickled)
        back = receive(ours, library.pickled)
        times.append(time.perf_counter() - start)
        del back
        if done >= FEWEST and time.perf_counter() - begun > seconds:
            break
    send(ours, None, library.pickled)
    child.join()
    return times[min(WARM_UP, len(times) // 2) :]


def drain(queue: Any, done: Any) -> None:
    while queue.get() is not None:
        pass
    done.put(1)


def stream(library: Library, nbytes: int, count: int) -> float:
    """Return the seconds that each new array of a stream takes."""
    queue, done = library.context.Queue(8), library.context.SimpleQueue()
    child = library.context.Process(target=drain, args=(queue, done))
    child.start()
    for _ in range(WARM_UP):
        queue.put(library.make(nbytes))
    begun = time.perf_counter()
    for _ in range(count):
        queue.put(library.make(nbytes))
    queue.put(None)
    done.get()
    each = (time.perf_counter() - begun) / count
    child.join()
    return each


def parts_of(array: DeviceArray, count: int, nbytes: int) -> list[DeviceArray]:
    dtype = dtype_of("uint8")
    return [DeviceArray(array.ptr + i * nbytes, (nbytes,), dtype, 0, owner=array._owner) for i in range(count)]


def sliced(array: Any, count: int, nbytes: int) -> list[Any]:
    return [array[i * nbytes : (i + 1) * nbytes] for i in range(count)]


def libraries() -> Iterator[Library]:
    """Yield the libraries that are installed."""
    yield Library("mp_cuda", lambda n: mp_cuda.empty(n, "uint8"), parts_of, mp.get_context("spawn"))
    try:
        import torch
        import torch.multiprocessing as torch_mp

        def make(n: int) -> Any:
            return torch.empty(n, dtype=torch.uint8, device="cuda")

        if torch.cuda.is_available():
            yield Library("torch", make, sliced, torch_mp.get_context("spawn"), sends_on=False)
            yield Library("torch, import mp_all", make, sliced, mp.get_context("spawn"), sends_on=False)
            yield Library('register("torch")', make, sliced, mp.get_context("spawn"), registers=True)
    except ImportError:
        print("torch is not installed")
    try:
        import cupy

        def make_cupy(n: int) -> Any:
            return cupy.empty(n, "uint8")

        yield Library("CuPy on mp_all", make_cupy, sliced, mp.get_context("spawn"))
        yield Library("CuPy pickled", make_cupy, sliced, multiprocessing.get_context("spawn"), pickled=True)
    except ImportError:
        print("CuPy is not installed")


def device_name(stub: bool) -> str:
    """Return the name of the device. Exit if there is none, or not the one that was asked for."""
    if not mp_cuda.is_available():
        sys.exit("benchmarks.cuda needs a GPU, and there is no CUDA device here; --stub measures our own cost")
    name = dict(mp_cuda.device_report())["device 0"]
    if ("STUB" in name) != stub:
        sys.exit("benchmarks.cuda needs a GPU; --stub measures our own cost on the stub driver of the tests")
    return name


def measure(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield each row: the median of each library in microseconds."""
    found = {library.name: library for library in libraries()}
    each = seconds / (len(ROWS) + len(STREAMS)) / len(found)
    rows: list[tuple[str, float | None, Callable[[Library], float | None]]] = [
        (row.name, row.bound_us, lambda library, row=row: trips(library, row, each)) for row in ROWS
    ]
    rows += [(name, None, lambda library, n=n: stream(library, n, ROUNDS)) for name, n in STREAMS]
    for name, bound, timed in rows:
        times: dict[str, float] = {}
        for library in found.values():
            if library.registers:
                mp_cuda.register("torch")
            took = timed(library)
            if library.registers:
                mp_cuda.unregister("torch")
            gc.collect()
            mp_cuda.wait_released(WAIT_S)
            if took is not None:
                times[library.name] = took * 1e6
        yield {"name": name, "bound": bound, "microseconds": times}


def trips(library: Library, row: Row, seconds: float) -> float | None:
    if row.is_sent_on and not library.sends_on:
        return None
    return statistics.median(round_trips(library, row, seconds * 0.7))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--seconds", type=float, default=180, help="for all")
    parser.add_argument("--stub", action="store_true", help="measure our own cost on the stub driver, not a GPU")
    asked = parser.parse_args()
    driver = stub_driver() if asked.stub else None
    print(device_name(asked.stub))
    print(*(f"{key}: {value}" for key, value in mp_cuda.device_report()), sep=" · ")
    rows = []
    for row in measure(asked.seconds):
        rows.append(row)
        text = ", ".join(f"{name} {value:.1f} µs" for name, value in row["microseconds"].items())
        bound = f" (target {row['bound']} µs)" if asked.stub and row["bound"] else ""
        print(f"{row['name']:42} {text}{bound}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(rows))  # after each row, for a run that is ended
    if driver is not None:
        mp_cuda.ipc_collect()  # the stub opens a file when memory is freed
        driver.close()


def stub_driver() -> Any:
    """Build and load the stub driver of the tests."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cuda"))
    from device import Stub

    return Stub()


if __name__ == "__main__":
    main()
