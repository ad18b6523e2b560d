"""Ranks and pools on several machines, placed by what manages the machines already.

    run(fn, args, nprocs, engine="ray")         on a Ray cluster; also mp_nodes.Ray(nodes=4, resources={"GPU": 1})
    run(fn, args, nprocs, engine="local")       on agents of this machine, to try it out
    Pool(64, engine="ray")                      a pool whose workers are on all nodes
    mp-spawn --nnodes 4 --node-rank 0 ...       under Slurm, MPI or by hand

mp-spawn and mp-pool find this package by its entry points, when ``engine=`` or ``--nnodes`` is used.
"""

# Imports that are not public have an underscore.
import importlib as _importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mp_core import __version__ as __version__
    from mp_nodes.driver.engine_context import EngineContext
    from mp_nodes.engines.local import Local
    from mp_nodes.engines.ray import Ray
    from mp_nodes.protocol import EngineError, Node

# The module of each name, imported at the first use: an engine may need none of the others.
_MODULES = {
    "EngineContext": "driver.engine_context",
    "EngineError": "protocol",
    "Local": "engines.local",
    "Node": "protocol",
    "Ray": "engines.ray",
}

__all__ = ["EngineContext", "EngineError", "Local", "Node", "Ray"]


if not TYPE_CHECKING:  # with this, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return _importlib.import_module("mp_core").__version__
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mp_core.system.imports import load

        value = globals()[name] = getattr(load(f"{__name__}.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


del TYPE_CHECKING  # a name of this module is public
