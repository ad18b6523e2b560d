"""libshm, or portable sharing where libshm does not run: both modules have the same functions.

Every other module calls them through this one. Functions that few programs call are in `library`, and are
imported with the first of them.
"""

from __future__ import annotations

from mp_core.system import machine

TYPE_CHECKING = False

if TYPE_CHECKING:
    from mp_core.sharing.compiled import *  # noqa: F403
    from mp_core.sharing.library import *  # noqa: F403
elif machine.has_libshm():
    from mp_core.sharing import compiled as _chosen
else:
    from mp_core.sharing import portable as _chosen

if not TYPE_CHECKING:
    globals().update({name: getattr(_chosen, name) for name in _chosen.__all__})
    __all__ = [*_chosen.__all__]

    def __getattr__(name: str) -> object:
        if name.startswith("__") or not machine.has_libshm():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mp_core.sharing import library

        value = globals()[name] = getattr(library, name)
        return value
