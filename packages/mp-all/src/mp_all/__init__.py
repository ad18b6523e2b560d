"""`multiprocessing` with NumPy arrays in shared memory: change the import, and nothing else.

    import mp_all as multiprocessing

Everything of `multiprocessing` is here, being the same objects but for `Pool`, which goes on when a worker is killed.
Arrays that cross a process boundary (queues, pipes, pools, arguments, results, executors) travel through shared memory.
Beside that: `shared.zeros` and its family, `is_shared`, `share_memory`, sharing strategies, the launcher `spawn`, and
`ProcessPoolExecutor`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import mp_core
import mp_reductions
import mp_spawn
from mp_core import *  # noqa: F403
from mp_core import _aliases
from mp_core import _get_thread_name as _get_thread_name
from mp_core import _prctl_pr_set_pdeathsig as _prctl_pr_set_pdeathsig
from mp_core import _set_thread_name as _set_thread_name
from mp_reductions import *  # noqa: F403
from mp_spawn import *  # noqa: F403

if sys.platform == "linux":
    import mp_pool
    from mp_pool import *  # noqa: F403
    from mp_pool import _contexts

__version__ = mp_core.__version__

if not TYPE_CHECKING:  # to a type checker all that the imports above bring is public; see mp_core
    __all__ = ["__version__"]
    __all__ += mp_core.__all__
    __all__ += mp_reductions.__all__
    __all__ += mp_spawn.__all__
    if sys.platform == "linux":
        __all__ += [name for name in mp_pool.__all__ if name not in __all__]  # Pool is in both
    __all__ += ["_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name"]

_aliases.install(__name__)
sys.modules[f"{__name__}.shared"] = mp_reductions.shared  # `from mp_all.shared import zeros`
mp_reductions.init_reductions()
if sys.platform == "linux":
    # Nothing of CUDA is imported; it waits for a CUDA library to be.
    import mp_cuda

    mp_cuda.init_reductions()
    _contexts.install()


if not TYPE_CHECKING:  # a type checker that saw this would take any name for granted

    def __getattr__(name: str) -> Any:
        # What `import *` does not bring: the submodules of multiprocessing, and names that a later Python adds.
        return getattr(mp_core, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(mp_core)})
