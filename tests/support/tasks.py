"""Functions that children run: pickled by name, so they stand at top level and import little."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import mp_all as mp

# The objects that this process keeps from one call to the next.
kept: list[Any] = []


def echo(thing: Any) -> Any:
    return thing


def keep(*things: Any) -> None:
    kept.extend(things)


def recall() -> list[Any]:
    return list(kept)


def drop_in_order() -> None:
    """Drop what was kept, the first of all first."""
    while kept:
        kept.pop(0)


def forget() -> int:
    """Drop what was kept; answers how many bytes of shared memory this process still uses."""
    kept.clear()
    gc.collect()
    stats = mp.memory_stats()
    return stats["live_bytes"] + stats.get("in_flight_bytes", 0)


def kept_values() -> list[Any]:
    return [thing.tolist() for thing in kept]


def fill(array: np.ndarray, value: Any) -> None:
    array[...] = value


def keep_and_fill(array: np.ndarray, value: Any) -> None:
    kept.append(array)
    array[...] = value


def make_and_keep(shape: tuple[int, ...], value: Any) -> np.ndarray:
    """Return a result that its maker keeps."""
    array = mp.shared.full(shape, value)
    kept.append(array)
    return array


def describe(array: np.ndarray) -> dict[str, Any]:
    """Everything about an array except its bytes and its address."""
    return {
        "type": type(array).__name__,
        "shape": array.shape,
        "strides": array.strides,
        "dtype": array.dtype,
        "writeable": array.flags.writeable,
        "aligned": array.flags.aligned,
        "c_contiguous": array.flags.c_contiguous,
        "f_contiguous": array.flags.f_contiguous,
    }


def describe_with_bytes(array: np.ndarray) -> tuple[dict[str, Any], bytes]:
    return describe(array), array.tobytes()


def is_shared(array: np.ndarray) -> bool:
    return mp.is_shared(array)


def copied_bytes() -> int:
    return mp.memory_stats()["copied_bytes"]
