"""A type of your own travels through shared memory: a codec of one function, and its registration."""

from __future__ import annotations

import array
from typing import Any

import mp_all as mp
from mp_core.memory import block
from mp_core.sharing import backend
from mp_core.system import reducers


class Samples:
    """Measurements with a unit. They lie in *memory*, any object with the buffer protocol."""

    def __init__(self, memory: Any, unit: str) -> None:
        self.memory = memory
        self.values = memoryview(memory).cast("B").cast("d")
        self.unit = unit

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value: for files, and for receivers that cannot share memory."""
        return Samples, (array.array("d", self.values), self.unit)


# ---- the codec -------------------------------------------------------------------------------------------------------


def reduce_samples(samples: Samples) -> tuple[Any, ...]:
    """Copy the values into a block for one receiver, unless they lie in one: then the receiver gets the same memory."""
    if backend.by_value():
        return samples.__reduce__()
    if isinstance(samples.memory, mp.Block):
        return Samples, (samples.memory, samples.unit)
    try:
        room = block.allocate(samples.values.nbytes, zeroed=False)
    except (MemoryError, OSError):
        return samples.__reduce__()
    memoryview(room)[:] = samples.values.cast("B")
    return Samples, (block.Copied(room), samples.unit)  # it arrives as a Block


reducers.offer(Samples, reduce_samples)


# ---- a program that uses it ------------------------------------------------------------------------------------------


def scale(task: tuple[Samples, float]) -> Samples:
    samples, factor = task
    for i in range(0, len(samples.values), 1000):
        samples.values[i] *= factor
    return samples


if __name__ == "__main__":
    private = Samples(array.array("d", [1.0] * 200_000), "V")
    shared = Samples(mp.Block(8 * 200_000), "V")
    shared.values[:] = private.values
    with mp.Pool(2) as pool:
        first, second = pool.map(scale, [(private, 3.0), (shared, 5.0)])
    assert (first.values[1000], first.values[1001], first.unit) == (3.0, 1.0, "V")
    assert isinstance(first.memory, mp.Block), "it arrived through shared memory"
    assert private.values[1000] == 1.0, "a private one is copied"
    assert shared.values[1000] == second.values[1000] == 5.0, "a shared one is the same memory"
    print("private samples were copied once, shared ones not at all")
