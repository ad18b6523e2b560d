"""The core of mp-all: all of `multiprocessing`, sharing strategies, and blocks of shared memory. No NumPy.

Every public name of `multiprocessing` is here and, but for the locks, is the same object, so `isinstance` and `except`
keep working; each of its submodules can be imported under this name too (``mp_core.pool``, ``mp_core.connection``, …).

    mp_core.install           patch multiprocessing, so that a failed message frees its memory; importing does not
    mp_core.Block             an allocation of shared memory that can be sent
    mp_core.Lease             its lifetime without the memory
    mp_core.set_sharing_strategy, get_sharing_strategy, get_all_sharing_strategies
    mp_core.set_sharing, get_sharing
    mp_core.set_strict_put
    mp_core.set_message_timeout, get_message_timeout
    mp_core.ReceiveError, SharedMemoryWarning, RepeatedCopyWarning
    mp_core.Lock, RLock, Semaphore, BoundedSemaphore, Condition, Event, Barrier    these outlive their holders
    mp_core.OwnerDiedWarning
    mp_core.memory_stats, list_segments, empty_cache
    mp_core.set_thread_name, get_thread_name, set_parent_death_signal
"""

# Private names have an underscore: all other names of this module are public.
import importlib as _importlib
import multiprocessing as _multiprocessing
import typing as _typing
from multiprocessing import *  # noqa: F403

from mp_core import _aliases, _deprecated, _native, _settings  # noqa: F401
from mp_core._install import install as install
from mp_core._version import __version__ as __version__
from mp_core.block import Block as Block
from mp_core.by_value import get_sharing as get_sharing
from mp_core.by_value import set_sharing as set_sharing
from mp_core.errors import OwnerDiedWarning as OwnerDiedWarning
from mp_core.errors import ReceiveError as ReceiveError
from mp_core.errors import RepeatedCopyWarning as RepeatedCopyWarning
from mp_core.errors import SharedMemoryWarning as SharedMemoryWarning
from mp_core.lease import Lease as Lease
from mp_core.lease import LeaseReference as LeaseReference
from mp_core.lease import collect_leases as collect_leases
from mp_core.lease import receive_lease as receive_lease
from mp_core.message_timeout import get_message_timeout as get_message_timeout
from mp_core.message_timeout import set_message_timeout as set_message_timeout
from mp_core.process_control import get_thread_name as get_thread_name
from mp_core.process_control import set_parent_death_signal as set_parent_death_signal
from mp_core.process_control import set_thread_name as set_thread_name
from mp_core.stats import Segment as Segment
from mp_core.stats import empty_cache as empty_cache
from mp_core.stats import list_segments as list_segments
from mp_core.stats import memory_stats as memory_stats
from mp_core.strategy import get_all_sharing_strategies as get_all_sharing_strategies
from mp_core.strategy import get_sharing_strategy as get_sharing_strategy
from mp_core.strategy import set_sharing_strategy as set_sharing_strategy

if _typing.TYPE_CHECKING:
    # The locks are not here: to a type checker they are those of multiprocessing, whose interface they have.
    from mp_core._channel_queues import set_strict_put as set_strict_put

if _typing.TYPE_CHECKING:
    # A type checker knows these after `import multiprocessing`, so it must know them here. At run time: _aliases.py.
    from multiprocessing import connection as connection
    from multiprocessing import context as context
    from multiprocessing import managers as managers
    from multiprocessing import pool as pool
    from multiprocessing import process as process
    from multiprocessing import queues as queues
    from multiprocessing import reduction as reduction
    from multiprocessing import shared_memory as shared_memory
    from multiprocessing import sharedctypes as sharedctypes
    from multiprocessing import synchronize as synchronize

# mypy ignores `__all__ += other.__all__`, and would take names outside of `__all__` for private. So the imports tell
# it: a name imported by `*`, or `as` itself, is public.
if not _typing.TYPE_CHECKING:
    __all__ = [
        "Block",
        "Lease",
        "LeaseReference",
        "OwnerDiedWarning",
        "ReceiveError",
        "RepeatedCopyWarning",
        "Segment",
        "SharedMemoryWarning",
        "collect_leases",
        "empty_cache",
        "get_all_sharing_strategies",
        "get_message_timeout",
        "get_sharing",
        "get_sharing_strategy",
        "get_thread_name",
        "install",
        "list_segments",
        "memory_stats",
        "receive_lease",
        "set_message_timeout",
        "set_parent_death_signal",
        "set_sharing",
        "set_sharing_strategy",
        "set_strict_put",
        "set_thread_name",
    ]
    __all__ += _multiprocessing.__all__

# The modules of names that are imported at their first use: every rank imports this package, and few need these.
_MODULES = {"set_strict_put": "_channel_queues"}
if _native.ENGINE:  # without shared memory the locks are those of the standard library
    _MODULES |= dict.fromkeys(("Barrier", "Condition", "Event"), "conditions")
    _MODULES |= dict.fromkeys(("BoundedSemaphore", "Lock", "RLock", "Semaphore"), "locks")
for _name in _MODULES:
    globals().pop(_name, None)  # those of multiprocessing, from the `import *` above

# Users of torch know three functions by these names.
_set_thread_name = set_thread_name
_get_thread_name = get_thread_name
_prctl_pr_set_pdeathsig = set_parent_death_signal

_aliases.install(__name__)


if _typing.TYPE_CHECKING:
    Claim = LeaseReference
    claim_lease = receive_lease
else:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> _typing.Any:
        if name in _deprecated.RENAMED:
            _deprecated.warn_renamed(name, _deprecated.RENAMED[name])
            return globals()[_deprecated.RENAMED[name]]
        if name in _MODULES:
            value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
            return value
        # `import *` does not bring submodules, nor names that a later Python adds.
        return getattr(_multiprocessing, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_multiprocessing)})
