"""Exit: the steps that close and report what a process still has open when it ends, in a fixed order.

The module that opens something registers the step that closes it. The driver schedules the steps when it starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import IntEnum
from multiprocessing import util

# After the feeder threads of queues have written their last message (-5).
LATE = -10


class Step(IntEnum):
    """The steps, in the order in which they run; the last one even if an earlier one failed."""

    FINALIZERS, IMPORTS, EVENTS, EXPORTS, REPORT = range(5)


_steps: dict[Step, Callable[[], object]] = {}


def register(step: Step) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Decorate the function that performs *step*."""
    return lambda function: _steps.setdefault(step, function)


def schedule(active: Callable[[], bool]) -> None:
    """Run the steps at the end of this process if *active()* is true then. Children of multiprocessing run them too."""
    util.Finalize(None, _run, args=(active,), exitpriority=LATE)


def _run(active: Callable[[], bool]) -> None:
    if not active():
        return
    try:
        for step in sorted(_steps.keys() - {Step.REPORT}):
            _steps[step]()
    except Exception as error:  # the process ends in any case, and the driver closes everything then
        warnings.warn(f"mp_cuda could not close everything at exit: {error}", ResourceWarning, stacklevel=1)
    if Step.REPORT in _steps:
        _steps[Step.REPORT]()
