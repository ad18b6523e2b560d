"""Tasks of pools on nodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

begun: list[str] = []


def begin(word: str) -> None:
    begun.append(word)


def words(task: int) -> list[str]:
    return begun


def fail_to_begin() -> None:
    raise LookupError("no begin")


def square(value: Any) -> Any:
    return value * value


def raise_at_three(value: int) -> int:
    if value == 3:
        raise ValueError("three")
    return value


def die_at_three(value: int) -> int:
    if value == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def die_once(path: str, value: int) -> int:
    """
    Kill this worker at the value 3, the first time.
    """
    if value == 3 and not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def place_of_memory(array: np.ndarray, task: int) -> tuple[str, int, bool]:
    """
    Return the node of this worker, the inode of the array's memory, and whether the array is writable.
    """
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            time.sleep(0.3)  # so that each worker gets a task
            return os.environ["GROUP_RANK"], int(inode), array.flags.writeable
    raise AssertionError("the array is nowhere")


def wait_for_ever(folder: str, task: int) -> None:
    """
    Write the pids of this worker and of its node's rank into a file of the folder, then sleep.
    """
    temporary = Path(folder, f".{task}")
    temporary.write_text(f"{os.getpid()} {os.getppid()} {os.environ['GROUP_RANK']}")
    temporary.rename(Path(folder, str(task)))
    time.sleep(300)


def wait_for_go(folder: str, task: int) -> int:
    """
    Return the task; the first one makes a file "begun", and waits for a file "go".
    """
    if task == 0:
        Path(folder, "begun").touch()
    while task == 0 and not Path(folder, "go").exists():
        time.sleep(0.02)
    return task


def note_and_wait_for_go(folder: str, task: int) -> None:
    """
    Make a file "begun-" with the number of the task, and wait for a file "go".
    """
    Path(folder, f"begun-{task}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def wait_for_ever_once(folder: str, task: int) -> int:
    if not Path(folder, str(task)).exists():
        wait_for_ever(folder, task)
    return task


def add_in_place(array: Any, number: int, constant: Any, views: list[Any]) -> tuple[Any, ...]:
    """Write to the argument; return what all of them hold then."""
    array += number
    return array.sum(), constant.flags.writeable, constant.sum(), [view.sum() for view in views]


def first_of(array: Any) -> Any:
    return array[0]


def refilled(array: Any, count: int) -> Iterator[Any]:
    """Yield one array again and again, with another first element each time."""
    for i in range(count):
        array[0] = i
        yield array
