"""Children register what their parent has registered, and begin with its sharing strategy.

Note [How a child learns of it]
-------------------------------
A child started by spawn or forkserver begins with a bare interpreter. It imports the parent's main module, which need
not import us, and unpickles what it was given. But nothing can come into it, and nothing can leave it, except through
a `Connection` that it was given: a queue is two of them, a pool four. So the pickle of a connection is where the
registration travels:

    parent: ForkingPickler(Connection) --> (join_family, (packages, strategy), original pickle)
    child:  join_family imports the packages and calls their init_reductions(), then the connection is rebuilt.

The cost is some fifty bytes per connection and one dictionary look-up when it has happened before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from multiprocessing import context
from multiprocessing.connection import Connection, reduce_connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core import strategy

__all__ = ["enlist", "join_family"]

_packages: list[str] = []
_joined = False


def enlist(package: str) -> None:
    """Have every child import *package* and call its `init_reductions()`."""
    if package not in _packages:
        _packages.append(package)
    ForkingPickler.register(Connection, _reduce_connection)


def _reduce_connection(connection: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    rebuild, args = reduce_connection(connection)  # type: ignore[no-untyped-call]
    # Only a child that is being started takes over the strategy; a running process keeps its own.
    inherited = strategy.get_sharing_strategy() if context.get_spawning_popen() is not None else None
    return join_family, (tuple(_packages), inherited, rebuild, args)


def join_family(packages: tuple[str, ...], inherited: str | None, rebuild: Callable[..., Any], args: Any) -> Any:
    """Register as the sender has, then rebuild its connection."""
    global _joined
    for package in packages:
        if package not in _packages:
            importlib.import_module(package).init_reductions()
            enlist(package)
    if inherited is not None and not _joined:
        _joined = True
        strategy.set_sharing_strategy(inherited)
    return rebuild(*args)
