"""Imported by `mp_core` when the environment asks for a timeline: join the run of a parent, or begin one."""

from __future__ import annotations

import os
import sys

__all__: list[str] = []


def _begin() -> None:
    from mp_core.system import machine, settings
    from mp_core.timeline import recorder

    path, run = settings.timeline()
    if run:
        if machine.has_libshm():
            recorder.join(run, _name())
        return
    from mp_core.timeline.recording import timeline

    try:
        timeline(path).begin_until_exit(settings.is_on("MP_TIMELINE_PRINT"))
    except (OSError, ValueError) as error:
        sys.exit(f"MP_TIMELINE: {error}")


def _name() -> str:
    """Name a process that no process object names: a rank, or a program that was started."""
    if "RANK" in os.environ:
        return f"rank {os.environ['RANK']}"
    words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
    program = words[0] if words else "python"
    for known, name in (("forkserver import", "fork server"), ("zygote_main", "zygote")):
        if known in program:
            return name
    return os.path.basename(program)[:60]


_begin()
