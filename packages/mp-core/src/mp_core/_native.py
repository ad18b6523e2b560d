"""The engine, or its substitute on a platform without shared memory: both modules have the same functions.

Every other module calls the engine through this one.
"""

from __future__ import annotations

from mp_core import _platform

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md

if TYPE_CHECKING:
    from mp_core._engine import *  # noqa: F403
elif _platform.has_engine():
    from mp_core import _engine as _chosen
else:
    from mp_core import _without_engine as _chosen

if not TYPE_CHECKING:
    globals().update({name: getattr(_chosen, name) for name in _chosen.__all__})
    __all__ = [*_chosen.__all__]
