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
from multiprocessing import *  # noqa: F403

from mp_core._version import __version__ as __version__
from mp_core.installation.install import install as install
from mp_core.system import imports as _imports
from mp_core.system import settings as _settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    # A type checker knows the modules after `import multiprocessing`, so it must know them here.
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

    # The locks are not here: to a type checker they are those of multiprocessing, whose interface they have.
    from mp_core.channels.channel_queues import set_strict_put as set_strict_put
    from mp_core.memory.block import Block as Block
    from mp_core.memory.lease import Lease as Lease
    from mp_core.memory.lease import LeaseReference as LeaseReference
    from mp_core.memory.lease import collect_leases as collect_leases
    from mp_core.memory.lease import receive_lease as receive_lease
    from mp_core.memory.stats import Segment as Segment
    from mp_core.memory.stats import empty_cache as empty_cache
    from mp_core.memory.stats import list_segments as list_segments
    from mp_core.memory.stats import memory_stats as memory_stats
    from mp_core.sharing.by_value import get_sharing as get_sharing
    from mp_core.sharing.by_value import set_sharing as set_sharing
    from mp_core.sharing.message_timeout import get_message_timeout as get_message_timeout
    from mp_core.sharing.message_timeout import set_message_timeout as set_message_timeout
    from mp_core.sharing.process_control import get_thread_name as get_thread_name
    from mp_core.sharing.process_control import set_parent_death_signal as set_parent_death_signal
    from mp_core.sharing.process_control import set_thread_name as set_thread_name
    from mp_core.sharing.strategy import get_all_sharing_strategies as get_all_sharing_strategies
    from mp_core.sharing.strategy import get_sharing_strategy as get_sharing_strategy
    from mp_core.sharing.strategy import set_sharing_strategy as set_sharing_strategy
    from mp_core.system.errors import OwnerDiedWarning as OwnerDiedWarning
    from mp_core.system.errors import ReceiveError as ReceiveError
    from mp_core.system.errors import RepeatedCopyWarning as RepeatedCopyWarning
    from mp_core.system.errors import SharedMemoryWarning as SharedMemoryWarning

    # The multiprocessing of another library has these three under these names.
    _set_thread_name = set_thread_name
    _get_thread_name = get_thread_name
    _prctl_pr_set_pdeathsig = set_parent_death_signal

# The module of each name. It is imported at the first use: a child imports this package and needs few of them.
_MODULES = {
    "Block": "memory.block",
    "Lease": "memory.lease",
    "LeaseReference": "memory.lease",
    "OwnerDiedWarning": "system.errors",
    "ReceiveError": "system.errors",
    "RepeatedCopyWarning": "system.errors",
    "Segment": "memory.stats",
    "SharedMemoryWarning": "system.errors",
    "collect_leases": "memory.lease",
    "empty_cache": "memory.stats",
    "get_all_sharing_strategies": "sharing.strategy",
    "get_message_timeout": "sharing.message_timeout",
    "get_sharing": "sharing.by_value",
    "get_sharing_strategy": "sharing.strategy",
    "get_thread_name": "sharing.process_control",
    "list_segments": "memory.stats",
    "memory_stats": "memory.stats",
    "receive_lease": "memory.lease",
    "set_message_timeout": "sharing.message_timeout",
    "set_parent_death_signal": "sharing.process_control",
    "set_sharing": "sharing.by_value",
    "set_sharing_strategy": "sharing.strategy",
    "set_strict_put": "channels.channel_queues",
    "set_thread_name": "sharing.process_control",
}
# Those that are not public, and their names in these modules.
_OTHERS = {
    "_get_thread_name": "get_thread_name",
    "_prctl_pr_set_pdeathsig": "set_parent_death_signal",
    "_set_thread_name": "set_thread_name",
}
# mypy ignores `__all__ += other.__all__`, and would take names outside of `__all__` for private. So the imports tell
# it: a name imported by `*`, or `as` itself, is public.
if not TYPE_CHECKING:
    __all__ = ["install", *_MODULES, *_multiprocessing.__all__]

# A wrong value is an error at import.
_settings.check()
# The modules of settings that take effect at import. Few programs set one.
_SETTINGS = {
    "MP_MESSAGE_TIMEOUT": "sharing.message_timeout",
    "MP_SHARE": "sharing.by_value",
    "MP_SHARING_STRATEGY": "sharing.strategy",
    "MP_TIMELINE": "timeline.from_environment",
    "MP_TIMELINE_RUN": "timeline.from_environment",
}
for _name, _module in _SETTINGS.items():
    if _settings.is_set(_name):
        _importlib.import_module(f"{__name__}.{_module}")

from mp_core.installation import lock_contexts as _lock_contexts  # noqa: E402 (after the settings, which it reads)
from mp_core.system import machine as _machine  # noqa: E402 (likewise)

if _machine.has_libshm():  # without shared memory the locks are those of the standard library
    for _name in _lock_contexts.MODULES:
        del globals()[_name]  # from the `import *` above

_imports.alias_submodules(__name__)


if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            module = f"{__name__}.{_MODULES[name]}"
        elif name in _lock_contexts.MODULES:
            module = _lock_contexts.MODULES[name]
        elif name in _OTHERS:
            value = globals()[name] = __getattr__(_OTHERS[name])
            return value
        else:
            # `import *` does not bring submodules, nor names that a later Python adds.
            return getattr(_multiprocessing, name, None) or _imports.submodule(name)
        value = globals()[name] = getattr(_imports.load(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_lock_contexts.MODULES, *dir(_multiprocessing)})


del TYPE_CHECKING  # a name of this module is public
