"""A task crashes in C code."""

from __future__ import annotations

import ctypes
import faulthandler
import resource

from benchmarks.comparison.event import PATIENCE, main
from benchmarks.comparison.libraries import Library


def crash() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    ctypes.string_at(0)


def event(library: type[Library]) -> str:
    pool = library()
    wait = pool.submit(crash)
    try:
        wait(PATIENCE)
    except BaseException as error:
        if "Timeout" in type(error).__name__:
            return "never answered"
        named = "names SIGSEGV" if "SIGSEGV" in str(error) or "segmentation" in str(error).lower() else "no reason"
        return f"{type(error).__name__}: {named}" + (", names the task" if "crash" in str(error) else "")
    return "no error"


if __name__ == "__main__":
    main(event)
