"""Children register what their parent has registered, and begin with its sharing strategy.

Note [How a child learns of it]
-------------------------------
A child started by spawn or forkserver begins with a bare interpreter. It imports the parent's main module, which need
not import us, and unpickles what it was given. But nothing can come into it, and nothing can leave it, except through
a `Connection` that it was given: a queue is two of them, a pool four. So the pickle of a connection is where the
registration travels:

    parent: ForkingPickler(Connection) --> (join_family, (packages, strategy, tree), original pickle)
    child:  join_family imports the packages and calls their init_reductions(), then the connection is rebuilt.

The cost is some eighty bytes per connection and one dictionary look-up when it has happened before.

The tree travels with it, so that parent and children share one manager, and both enter it at once: a message is kept
while anybody is in its tree, and the parent must be there before a child can send one and end. A forked child has all
of this already; the hook before the fork makes sure that its parent has entered.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from multiprocessing import connection as _connection
from multiprocessing import context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core import strategy
from mp_core._native import ffi, lib

__all__ = ["enlist", "join_family"]

_original_reducer: Any = vars(_connection)["reduce_connection"]
_packages: list[str] = []
_joined = False


def enlist(package: str) -> None:
    """Have every child import *package* and call its `init_reductions()`."""
    if package not in _packages:
        _packages.append(package)
    ForkingPickler.register(Connection, _reduce_connection)


def _reduce_connection(connection: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    rebuild, args = _original_reducer(connection)
    # Only a child that is being started takes over strategy and tree; a running process keeps its own.
    inherited = (strategy.get_sharing_strategy(), _enter()) if context.get_spawning_popen() is not None else None
    return join_family, (tuple(_packages), inherited, rebuild, args)


def _enter() -> bytes:
    """Be in the tree; return its name."""
    # Where that fails, processes still start and talk. It will be said when memory is to be shared.
    lib.mpshm_enter()
    tree = ffi.new("unsigned char[]", lib.MPSHM_ID_SIZE)
    lib.mpshm_home(tree)
    return bytes(ffi.buffer(tree))


def _before_fork() -> None:
    if _packages:
        _enter()


os.register_at_fork(before=_before_fork)


def join_family(
    packages: tuple[str, ...], inherited: tuple[str, bytes] | None, rebuild: Callable[..., Any], args: Any
) -> Any:
    """Register as the sender has, then rebuild its connection."""
    global _joined
    for package in packages:
        if package not in _packages:
            importlib.import_module(package).init_reductions()
            enlist(package)
    if inherited is not None and not _joined:
        _joined = True
        name, tree = inherited
        strategy.set_sharing_strategy(name)
        # A child that has begun to share in a tree of its own stays there; both can talk all the same.
        lib.mpshm_set_home(tree)
        _enter()
    return rebuild(*args)
