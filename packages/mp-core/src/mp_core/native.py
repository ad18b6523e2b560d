"""The engine, or its substitute on a platform without shared memory: both modules have the same functions.

Every other module calls the engine through this one. Functions that few programs call are in `_library`, and are
imported with the first of them.
"""

from __future__ import annotations

from mp_core import machine

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md

if TYPE_CHECKING:
    from mp_core._engine import *  # noqa: F403
    from mp_core._library import *  # noqa: F403
elif machine.has_engine():
    from mp_core import _engine as _chosen
else:
    from mp_core import _without_engine as _chosen

if not TYPE_CHECKING:
    globals().update({name: getattr(_chosen, name) for name in _chosen.__all__})
    __all__ = [*_chosen.__all__]

    def __getattr__(name: str) -> object:
        if name.startswith("__") or not machine.has_engine():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mp_core import _library

        value = globals()[name] = getattr(_library, name)
        return value
