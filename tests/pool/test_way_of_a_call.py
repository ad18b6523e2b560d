"""The way of a call to the worker's line: how many functions, in how many files, a reader has to follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pool_tasks
import pytest

import mp_all as mp


def calls_of(function: Callable[[], Any]) -> list[str]:
    """
    Return the files of our functions that *function* calls, until a task is in the line of its worker.
    """
    found: list[str] = []
    arrived = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal arrived
        path = Path(frame.f_code.co_filename)
        if event == "call" and not arrived and any(part.startswith("mp_") for part in path.parts[-3:-1]):
            found.append(path.name)
            arrived = frame.f_code.co_name == "send_at_once"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    assert arrived
    return found


@pytest.mark.parametrize("kind", ["Pool", "ProcessPoolExecutor"])
def test_a_call_passes_few_functions_in_six_files(kind: str) -> None:
    with getattr(mp, kind)(2) as pool:

        def call() -> Any:
            return pool.apply(pool_tasks.square, (3,)) if kind == "Pool" else pool.submit(pool_tasks.square, 3).result()

        assert call() == 9  # the workers have started
        files = calls_of(call)
    assert len(files) <= 20, files
    assert len(set(files)) <= 6, files
