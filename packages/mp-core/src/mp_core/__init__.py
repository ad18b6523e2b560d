"""The core of mp-all: all of `multiprocessing`, sharing strategies, and blocks of shared memory. No NumPy.

Every public name of `multiprocessing` is here and is the same object, so `isinstance` and `except` keep working; each
of its submodules can be imported under this name too (``mp_core.pool``, ``mp_core.connection``, …).

    mp_core.Block             an allocation of shared memory that travels
    mp_core.Lease             its lifetime without the memory
    mp_core.set_sharing_strategy, get_sharing_strategy, get_all_sharing_strategies
    mp_core.memory_stats, list_segments, empty_cache
    mp_core.set_thread_name, get_thread_name, set_parent_death_signal
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403
from typing import Any

from mp_core import _aliases
from mp_core._version import __version__ as __version__
from mp_core.block import Block
from mp_core.lease import Claim, Lease, claim_lease, collect_leases
from mp_core.manners import get_thread_name, set_parent_death_signal, set_thread_name
from mp_core.stats import Segment, empty_cache, list_segments, memory_stats
from mp_core.strategy import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy

__all__ = [
    "Block",
    "Claim",
    "Lease",
    "Segment",
    "claim_lease",
    "collect_leases",
    "empty_cache",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "get_thread_name",
    "list_segments",
    "memory_stats",
    "set_parent_death_signal",
    "set_sharing_strategy",
    "set_thread_name",
]
__all__ += multiprocessing.__all__

# The names under which users of torch know two of them.
_set_thread_name = set_thread_name
_get_thread_name = get_thread_name
_prctl_pr_set_pdeathsig = set_parent_death_signal

_aliases.install(__name__)


def __getattr__(name: str) -> Any:
    # What `import *` does not bring: submodules, and names that a later Python adds.
    return getattr(multiprocessing, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(multiprocessing)})
