"""Replace `multiprocessing`, with NumPy arrays in shared memory: change the import, and nothing else.

    import mp_all as multiprocessing

It has every name of `multiprocessing`, as the same object except for `Pool`, which survives the death of a worker, and
the locks, which survive the death of their holder.
Arrays that cross a process boundary (queues, pipes, pools, arguments, results, executors) travel through shared memory.
It adds `shared.zeros` and its siblings, `is_shared`, `share_memory`, sharing strategies, the launcher `spawn`,
`ProcessPoolExecutor`, `memory_report`, a backend of joblib (`joblib_install`) and options of dask (`dask_options`).
"""

# Private names have an underscore: all other names of this module are public.
import multiprocessing as _multiprocessing
import os as _os
import sys as _sys
import typing as _typing

import mp_core as _core
import mp_reductions as _reductions
import mp_spawn as _spawn
from mp_all._report import memory_report as memory_report
from mp_all._torch import torch_install as torch_install

if _typing.TYPE_CHECKING:  # before mp_core's Pool, which is multiprocessing's: to a type checker the first one stays
    from mp_pool.pool import Pool as Pool
from mp_core import *  # type: ignore[assignment]  # noqa: F403
from mp_core import _aliases, _channels, _platform
from mp_core import _get_thread_name as _get_thread_name
from mp_core import _prctl_pr_set_pdeathsig as _prctl_pr_set_pdeathsig
from mp_core import _set_thread_name as _set_thread_name
from mp_reductions import *  # noqa: F403
from mp_spawn import *  # noqa: F403

if _platform.system() == "linux":
    import mp_pool as _pool
    from mp_all._dask import dask_options as dask_options
    from mp_all._joblib_install import joblib_install as joblib_install
    from mp_pool import *  # noqa: F403
    from mp_pool import _contexts
    from mp_pool.pool import use_engines as _use_engines

__version__ = _core.__version__

if not _typing.TYPE_CHECKING:  # to a type checker all imported names above are public; see mp_core
    __all__ = ["__version__", "memory_report", "torch_install"]
    __all__ += _core.__all__
    __all__ += _reductions.__all__
    __all__ += _spawn.__all__
    if _platform.system() == "linux":
        __all__ += [name for name in _pool.__all__ if name not in __all__]  # Pool is in both
        __all__ += ["dask_options", "joblib_install"]
    __all__ += ["_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name"]


def _node_scheduler(*args: _typing.Any) -> _typing.Any:
    """
    Return the scheduler of a pool with an engine. Few programs need it, so its modules are imported here.
    """
    from mp_all._node_pool.scheduler import NodeScheduler

    return NodeScheduler(*args)


if not _typing.TYPE_CHECKING and _platform.has_engine() and _channels.enabled():
    # Pipes and queues whose messages skip the pipe; multiprocessing's own stay as they are.
    from mp_core import _contexts as _channel_contexts

    globals().update((_name, getattr(_channel_contexts.default_context, _name)) for _name in _channel_contexts.NAMES)

_aliases.install(__name__)
_sys.modules[f"{__name__}.shared"] = _reductions.shared  # `from mp_all.shared import zeros`
_reductions.init_reductions()
if _platform.has_engine():
    from mp_core import _lock_contexts

    _lock_contexts.install()
if _platform.system() == "linux":
    # This imports nothing of CUDA; it waits until a CUDA library is imported.
    import mp_cuda as _cuda

    _cuda.init_reductions()
    _contexts.install()
    _use_engines(_node_scheduler)
if _os.environ.get("MP_TORCH", "0") not in ("", "0"):
    torch_install()


if not _typing.TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> _typing.Any:
        if name in ("ProcessPoolExecutor", "TaskTimeoutError", "WorkerLostError"):  # on Linux they are here already
            raise AttributeError(
                f"mp_all.{name} is in mp-pool, which needs Linux, and this is {_platform.name()}; "
                "use concurrent.futures.ProcessPoolExecutor or multiprocessing.Pool"
            )
        # Old names, submodules, and names that a later Python adds; `import *` does not bring them.
        return _core.__getattr__(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_multiprocessing)})
