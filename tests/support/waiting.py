"""Wait for a condition that no event announces: poll it, never longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """
    Call *condition* until it is true or *timeout* has passed; returns its last answer.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return answer
