"""Replace `multiprocessing`, with NumPy arrays in shared memory: change the import, and nothing else.

    import mp_all as multiprocessing

It has every name of `multiprocessing`, as the same object except for `Pool`, which survives the death of a worker, and
the locks, which survive the death of their holder.
Arrays that cross a process boundary (queues, pipes, pools, arguments, results, executors) travel through shared memory.
It adds `shared.zeros` and its siblings, `is_shared`, `share_memory`, sharing strategies, the launcher `spawn`,
`ProcessPoolExecutor`, `memory_report`, `timeline`, a backend of joblib (`joblib_install`) and options of dask
(`dask_options`).
`cuda` is the package mp_cuda, for arrays on devices; `engines` is mp_nodes, for ranks and pools on several machines.
"""

# Private names have an underscore: all other names of this module are public.
# ruff: noqa: E402
import importlib as _importlib
import sys as _sys

if _sys.argv[:1] == ["-m"]:  # perhaps `python -m mp_all program.py`, which starts Python again
    from mp_all import _runner

    _runner.run_early()

TYPE_CHECKING = False
if TYPE_CHECKING:  # before multiprocessing's: to mypy the first declaration of a name counts
    from mp_core.channels.coroutine_types import JoinableQueue as JoinableQueue
    from mp_core.channels.coroutine_types import Pipe as Pipe
    from mp_core.channels.coroutine_types import Process as Process
    from mp_core.channels.coroutine_types import Queue as Queue
    from mp_core.channels.coroutine_types import SimpleQueue as SimpleQueue
    from mp_pool.contexts import get_context as get_context
    from mp_pool.pool import Pool as Pool

import multiprocessing as _multiprocessing
from multiprocessing import *  # type: ignore[assignment, no-redef]  # noqa: F403

from mp_core import __version__ as __version__
from mp_core.installation import lock_contexts as _lock_contexts
from mp_core.system import imports as _imports
from mp_core.system import machine as _machine
from mp_core.system import packages as _packages
from mp_core.system import settings as _settings

if TYPE_CHECKING:  # the same names again, after multiprocessing's: to pyright the last declaration counts
    import mp_cuda
    import mp_nodes
    from mp_all._dask import dask_options as dask_options
    from mp_all._joblib_install import joblib_install as joblib_install
    from mp_all._report import memory_report as memory_report
    from mp_all._timeline import timeline as timeline
    from mp_all._torch import torch_install as torch_install
    from mp_core import *  # type: ignore[assignment, no-redef]  # noqa: F403
    from mp_core.channels.coroutine_types import JoinableQueue as JoinableQueue
    from mp_core.channels.coroutine_types import Pipe as Pipe
    from mp_core.channels.coroutine_types import Process as Process
    from mp_core.channels.coroutine_types import Queue as Queue
    from mp_core.channels.coroutine_types import SimpleQueue as SimpleQueue
    from mp_pool import *  # noqa: F403
    from mp_pool.contexts import get_context as get_context
    from mp_pool.pool import Pool as Pool
    from mp_reductions import *  # noqa: F403
    from mp_spawn import *  # noqa: F403

    cuda = mp_cuda
    engines = mp_nodes

# The module of each name. It is imported at the first use: a program and its children pay for what they use.
_NAMES = {
    "mp_all._report": "memory_report",
    "mp_all._timeline": "timeline",
    "mp_all._torch": "torch_install",
    "mp_core": "Block Lease LeaseReference OwnerDiedWarning ReceiveError RepeatedCopyWarning Segment "
    "SharedMemoryWarning collect_leases empty_cache get_all_sharing_strategies get_message_timeout get_sharing "
    "get_sharing_strategy get_thread_name install list_segments memory_stats receive_lease set_message_timeout "
    "set_parent_death_signal set_sharing set_sharing_strategy set_strict_put set_thread_name",
    "mp_reductions": "get_inline_limit init_reductions install_shared_allocator is_shared set_inline_limit "
    "share_memory share_memory_ shared shared_allocator uninstall_shared_allocator",
    "mp_spawn": "ENV_VAR_PARALLEL_START Failure LoggingToParent ProcessContext ProcessException "
    "ProcessExitedException ProcessRaisedException RunningJob SpawnContext logging_to_parent rng run spawn "
    "start_processes",
}
_NAMES_ON_LINUX = {
    "mp_all._dask": "dask_options",
    "mp_all._joblib_install": "joblib_install",
    "mp_pool": "Pool ProcessPoolExecutor TaskMemoryError TaskTimeoutError WorkerLostError rng worker_index",
}
_is_linux = _machine.system() == "linux"
_MODULES = {
    name: module
    for module, names in (_NAMES | _NAMES_ON_LINUX if _is_linux else _NAMES).items()
    for name in names.split()
}
_MODULES |= dict.fromkeys(("_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name"), "mp_core")

if not TYPE_CHECKING:  # to a type checker all imported names above are public; see mp_core
    __all__ = ["__version__", *_MODULES, *(name for name in _multiprocessing.__all__ if name not in _MODULES)]

    if _machine.has_libshm():
        _MODULES |= dict.fromkeys(_lock_contexts.MODULES, "mp_core")
    for _name in _MODULES:
        globals().pop(_name, None)  # those of multiprocessing, from the `import *` above

    if _settings.channels_enabled() and _machine.has_libshm():
        from mp_core.installation import contexts as _contexts

        # Pipes and queues whose messages skip the pipe; multiprocessing's own stay as they are.
        globals().update((_name, _contexts.function(_name)) for _name in _contexts.NAMES)
    else:
        from mp_core.installation import queue_functions as _queues

        globals().update((_name, _queues.QueueFunction(_queues.standard_context, _name)) for _name in _queues.NAMES)


def _let_blocks_be_shared() -> None:
    reductions = _imports.load("mp_reductions")
    _sys.modules["mp_pool.blocks"].use_shared_memory(reductions.share_memory, reductions.shared.empty)


def _install_all() -> None:
    """Install all packages. Each is imported when its subject is met, see Note [Packages and their subjects]."""
    _packages.watch("mp_reductions", "import numpy", "numpy.ndarray")
    _packages.watch("mp_all._tensors", "torch")
    if _machine.has_libshm():
        _lock_contexts.install()
    if _is_linux:
        from mp_pool import contexts as pool_contexts

        _packages.watch("mp_cuda", "import cupy", "import numba.cuda", "import cuda.core")
        pool_contexts.install()
        _imports.when_imported("mp_pool.blocks", _let_blocks_be_shared)
    _settings.KNOWN.add("MP_TORCH")
    if _settings.is_on("MP_TORCH"):
        _importlib.import_module("mp_all._torch").torch_install()


# `mp_all.spawn` is the launcher function. `import mp_all.spawn` imports the standard library's module all the same.
_SUBMODULES = {"engines": "mp_nodes", "shared": "mp_reductions.shared"} | ({"cuda": "mp_cuda"} if _is_linux else {})
_imports.alias_submodules(__name__, own=("spawn",), others=_SUBMODULES)
_install_all()


def _launcher() -> object:
    """
    Return the launcher `spawn` with the functions of the module `multiprocessing.spawn` as its attributes.

    A program that calls `multiprocessing.spawn.set_executable(...)` works with its import changed: the functions set
    the module's state.
    """
    launcher = _imports.load("mp_spawn").spawn
    module = vars(_importlib.import_module("multiprocessing.spawn"))
    vars(launcher).update({name: value for name, value in module.items() if callable(value) and name.islower()})
    return launcher


if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        if name == "spawn":
            value = _launcher()
        elif name in _MODULES:
            value = getattr(_imports.load(_MODULES[name]), name)
        elif name in _SUBMODULES:
            try:
                value = _imports.load(_SUBMODULES[name])
            except ModuleNotFoundError as error:
                if error.name != "mp_nodes":
                    raise
                text = "mp_all.engines is the package mp-nodes, which is not installed: pip install mp-nodes"
                raise AttributeError(text) from None
        elif name in _NAMES_ON_LINUX["mp_pool"].split():  # on Linux they are in the table
            raise AttributeError(
                f"mp_all.{name} is in mp-pool, which needs Linux, and this is {_machine.name()}; "
                "use concurrent.futures.ProcessPoolExecutor or multiprocessing.Pool"
            )
        else:
            # Old names, submodules, and names that a later Python adds; `import *` does not bring them.
            try:
                return _imports.load("mp_core").__getattr__(name)
            except AttributeError:
                raise AttributeError(
                    f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__]
                ) from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES, *dir(_multiprocessing)})


del TYPE_CHECKING  # a name of this module is public
