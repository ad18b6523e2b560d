"""Functions that ranks on an engine run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mp_all as mp

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(rank: int) -> list[str]:
    return [os.environ[name] for name in NAMES]


def write_to_both(rank: int, private: np.ndarray, shared: np.ndarray, ranks_of_node: int) -> tuple[Any, ...]:
    """
    Write to two arrays and wait until every rank of this node has written to the shared one.
    """
    private[0] += rank
    shared[rank] = 1 + rank
    deadline = time.monotonic() + 30
    while np.count_nonzero(shared) < ranks_of_node and time.monotonic() < deadline:
        time.sleep(0.01)
    return float(private[0]), shared.tolist(), mp.is_shared(shared), private.flags.writeable, float(private.sum())


def bytes_copied(rank: int, *arrays: np.ndarray) -> tuple[int, float]:
    return mp.memory_stats()["copied_bytes"], float(sum(a[-1] for a in arrays))


def misbehave(rank: int, bad: int, how: str) -> None:
    if rank == bad:
        if how == "raise":
            raise ValueError("boom")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
    time.sleep(300)


def raise_an_array(rank: int) -> None:
    raise ValueError(np.arange(100_000))


def say(rank: int, word: str) -> None:
    print(rank, word)
    print(rank, "to stderr", file=sys.stderr)


def wait_for_ever(rank: int, folder: str) -> None:
    """
    Write the pid of this rank and its parents' into a file of the folder, then sleep.
    """
    text = f"{os.getpid()}"
    temporary = Path(folder, f".{rank}")
    temporary.write_text(text)
    temporary.rename(Path(folder, str(rank)))
    time.sleep(300)


def refuse_to_end(rank: int, folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_ever(rank, folder)


def wait_once(rank: int, folder: str, array: np.ndarray) -> None:
    """
    Write the pid of this rank as `wait_for_ever` does, and wait for a file "go"; started again, say so and return.
    """
    if Path(folder, str(rank)).exists():
        Path(folder, f".again-{rank}").write_text(str(array[-1]))
        Path(folder, f".again-{rank}").rename(Path(folder, f"again-{rank}"))
        return
    Path(folder, f".{rank}").write_text(str(os.getpid()))
    Path(folder, f".{rank}").rename(Path(folder, str(rank)))
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def fail_once(rank: int, folder: str) -> int:
    path = Path(folder, f"failed-{rank}")
    if rank == 1 and not path.exists():
        path.touch()
        raise OSError("the first time")
    return rank


def returns(value: Any) -> Callable[[int], Any]:
    return lambda rank: (rank, value)


def devices(rank: int) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def are_ranges(rank: int, *arrays: np.ndarray) -> bool:
    return all(np.array_equal(array, np.arange(len(array))) for array in arrays)
