"""Replace `multiprocessing`, with NumPy arrays in shared memory: change the import, and nothing else.

    import mp_all as multiprocessing

It has every name of `multiprocessing`, as the same object except for `Pool`, which survives the death of a worker, and
the locks, which survive the death of their holder.
Arrays that cross a process boundary (queues, pipes, pools, arguments, results, executors) travel through shared memory.
It adds `shared.zeros` and its siblings, `is_shared`, `share_memory`, sharing strategies, the launcher `spawn`, and
`ProcessPoolExecutor`.
"""

# Private names have an underscore: all other names of this module are public.
import multiprocessing as _multiprocessing
import sys as _sys
import typing as _typing

import mp_core as _core
import mp_reductions as _reductions
import mp_spawn as _spawn
from mp_core import *  # noqa: F403
from mp_core import _aliases, _lock_contexts
from mp_core import _get_thread_name as _get_thread_name
from mp_core import _prctl_pr_set_pdeathsig as _prctl_pr_set_pdeathsig
from mp_core import _set_thread_name as _set_thread_name
from mp_reductions import *  # noqa: F403
from mp_spawn import *  # noqa: F403

if _sys.platform == "linux":
    import mp_pool as _pool
    from mp_pool import *  # noqa: F403
    from mp_pool import _contexts

__version__ = _core.__version__

if not _typing.TYPE_CHECKING:  # to a type checker all imported names above are public; see mp_core
    __all__ = ["__version__"]
    __all__ += _core.__all__
    __all__ += _reductions.__all__
    __all__ += _spawn.__all__
    if _sys.platform == "linux":
        __all__ += [name for name in _pool.__all__ if name not in __all__]  # Pool is in both
    __all__ += ["_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name"]

_aliases.install(__name__)
_sys.modules[f"{__name__}.shared"] = _reductions.shared  # `from mp_all.shared import zeros`
_reductions.init_reductions()
_lock_contexts.install()
if _sys.platform == "linux":
    # This imports nothing of CUDA; it waits until a CUDA library is imported.
    import mp_cuda as _cuda

    _cuda.init_reductions()
    _contexts.install()


if not _typing.TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> _typing.Any:
        # Old names, submodules, and names that a later Python adds; `import *` does not bring them.
        return _core.__getattr__(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_multiprocessing)})
