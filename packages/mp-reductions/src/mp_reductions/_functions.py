"""The compiled module, or its substitute where libshm does not run: both have the same functions.

Every other module calls the compiled one through this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mp_core.sharing import backend as _core

if TYPE_CHECKING:
    from mp_reductions._native import *  # noqa: F403
elif _core.LIBSHM:
    from mp_reductions import _native as _chosen
else:
    from mp_reductions import _uncompiled as _chosen

if not TYPE_CHECKING:
    globals().update({name: value for name, value in vars(_chosen).items() if not name.startswith("_")})
