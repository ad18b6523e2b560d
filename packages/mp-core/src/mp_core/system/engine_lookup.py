"""Find what runs ranks and pools on several machines: the entry points of the group ``mp.engines``.

mp-spawn and mp-pool have no code for several machines. A package that has it (mp-nodes) says in its metadata where:

    run       run(engine, fn, args, nprocs, timeout, grace_period, **options)   returns the pickled results, by rank
    start     start(engine, fn, args, nprocs, join, **options)                  returns a `mp_spawn.RunningJob`, or None
    command   command(chosen, recording)                                        runs mp-spawn, returns its exit code
    pool      pool(engine, processes, settings, timeout, progress)              returns the scheduler of a pool

Nobody looks before ``engine=`` or ``--nnodes`` is used: to read the metadata of all packages takes milliseconds.
"""

from __future__ import annotations

from mp_core.system.imports import load as _load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUP = "mp.engines"


def load(name: str, asked: str) -> Any:
    """
    Return the function of the entry point *name*; *asked* is what the program has given, for the error.

    Raises
    ------
    ModuleNotFoundError
        No package has it.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        return getattr(_load(point.module), point.attr)
    text = f"{asked} needs mp-nodes, which is not installed: pip install mp-nodes"
    raise ModuleNotFoundError(text, name="mp_nodes")
