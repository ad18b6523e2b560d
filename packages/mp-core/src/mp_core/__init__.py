"""The core of mp-all: all of `multiprocessing`, sharing strategies, and blocks of shared memory. No NumPy.

Every public name of `multiprocessing` is here and is the same object, so `isinstance` and `except` keep working; each
of its submodules can be imported under this name too (``mp_core.pool``, ``mp_core.connection``, …).

    mp_core.Block             an allocation of shared memory that travels
    mp_core.Lease             its lifetime without the memory
    mp_core.set_sharing_strategy, get_sharing_strategy, get_all_sharing_strategies
    mp_core.set_sharing, get_sharing
    mp_core.ReceiveError, SharedMemoryWarning, RepeatedCopyWarning
    mp_core.install           let the messages of multiprocessing carry all of this; importing does not
    mp_core.memory_stats, list_segments, empty_cache
    mp_core.set_thread_name, get_thread_name, set_parent_death_signal
"""

# What this module needs for itself has an underscore: its other names are public.
import multiprocessing as _multiprocessing
import typing as _typing
from multiprocessing import *  # noqa: F403

from mp_core import _aliases, _settings  # noqa: F401
from mp_core._children import install as install
from mp_core._version import __version__ as __version__
from mp_core.block import Block as Block
from mp_core.by_value import get_sharing as get_sharing
from mp_core.by_value import set_sharing as set_sharing
from mp_core.errors import ReceiveError as ReceiveError
from mp_core.errors import RepeatedCopyWarning as RepeatedCopyWarning
from mp_core.errors import SharedMemoryWarning as SharedMemoryWarning
from mp_core.lease import Claim as Claim
from mp_core.lease import Lease as Lease
from mp_core.lease import claim_lease as claim_lease
from mp_core.lease import collect_leases as collect_leases
from mp_core.manners import get_thread_name as get_thread_name
from mp_core.manners import set_parent_death_signal as set_parent_death_signal
from mp_core.manners import set_thread_name as set_thread_name
from mp_core.stats import Segment as Segment
from mp_core.stats import empty_cache as empty_cache
from mp_core.stats import list_segments as list_segments
from mp_core.stats import memory_stats as memory_stats
from mp_core.strategy import get_all_sharing_strategies as get_all_sharing_strategies
from mp_core.strategy import get_sharing_strategy as get_sharing_strategy
from mp_core.strategy import set_sharing_strategy as set_sharing_strategy

if _typing.TYPE_CHECKING:
    # After `import multiprocessing` a type checker knows these; here too. At run time: see _aliases.py.
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

# mypy reads `__all__ += other.__all__` as nothing, and would take what it does not find in `__all__` for private. So it
# is told by the imports: what comes by `*`, or `as` itself, is public.
if not _typing.TYPE_CHECKING:
    __all__ = [
        "Block",
        "Claim",
        "Lease",
        "ReceiveError",
        "RepeatedCopyWarning",
        "Segment",
        "SharedMemoryWarning",
        "claim_lease",
        "collect_leases",
        "empty_cache",
        "get_all_sharing_strategies",
        "get_sharing",
        "get_sharing_strategy",
        "get_thread_name",
        "install",
        "list_segments",
        "memory_stats",
        "set_parent_death_signal",
        "set_sharing",
        "set_sharing_strategy",
        "set_thread_name",
    ]
    __all__ += _multiprocessing.__all__

# The names under which users of torch know two of them.
_set_thread_name = set_thread_name
_get_thread_name = get_thread_name
_prctl_pr_set_pdeathsig = set_parent_death_signal

_aliases.install(__name__)


if not _typing.TYPE_CHECKING:  # a type checker that saw this would take any name for granted

    def __getattr__(name: str) -> _typing.Any:
        # What `import *` does not bring: submodules, and names that a later Python adds.
        return getattr(_multiprocessing, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_multiprocessing)})
