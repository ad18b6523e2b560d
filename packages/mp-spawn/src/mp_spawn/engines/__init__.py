"""Engines: the same ranks on several machines, placed by what manages the machines already.

run(fn, args, nprocs, engine="ray")         on a Ray cluster; also engines.Ray(nodes=4, resources={"GPU": 1})
run(fn, args, nprocs, engine="local")       on agents of this machine, to try it out
mp-spawn --nnodes 4 --node-rank 0 ...       under Slurm, MPI or by hand
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from mp_spawn.engines.engine_context import EngineContext
    from mp_spawn.engines.local import Local
    from mp_spawn.engines.protocol import EngineError, Node
    from mp_spawn.engines.ray import Ray

# The module of each name, imported at the first use: most programs stay on one machine.
_MODULES = {
    "EngineContext": "engine_context",
    "EngineError": "protocol",
    "Local": "local",
    "Node": "protocol",
    "Ray": "ray",
}

__all__ = ["EngineContext", "EngineError", "Local", "Node", "Ray"]


def engine_for(engine: _typing.Any) -> _typing.Any:
    """
    Return the engine of that name; an engine is returned as it is.

    >>> engine_for("local").nodes
    1
    """
    if engine == "local":
        return _importlib.import_module("mp_spawn.engines.local").Local()
    if engine == "ray":
        return _importlib.import_module("mp_spawn.engines.ray").Ray()
    if isinstance(engine, str):
        raise ValueError(f"engine={engine!r} is unknown; give 'local', 'ray', or an object like engines.Ray(nodes=4)")
    if not hasattr(engine, "place"):
        raise TypeError(f"engine={engine!r} is no engine; give 'local', 'ray', or an object like engines.Ray(nodes=4)")
    return engine


if not _typing.TYPE_CHECKING:  # with this, a type checker would accept any name

    def __getattr__(name: str) -> _typing.Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
