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

It is named by its id, and given by descriptors too; see `_starting.py`.

A launcher that gives its children no connection sends a `Family` itself. Its child enters the tree with `arrive`, and
registers when it has something to send: `register_loaded` leaves out a package whose subject nobody has imported, so
that a child which never sees an array does not wait for NumPy.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing import connection as _connection
from multiprocessing import context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from mp_core import _many, _native, _starting, strategy
from mp_core._native import ffi, lib

__all__ = ["Family", "arrive", "enlist", "family", "join_family", "register_loaded"]

_original_reducer: Any = vars(_connection)["reduce_connection"]
# Each package, and the module about whose objects it is.
_packages: dict[str, str] = {}
_joined = False


class Family(NamedTuple):
    """What a child has to know about its parent."""

    packages: dict[str, str]
    strategy: str
    tree: bytes
    sharing: bool = True


_awaited: dict[str, str] = {}


def enlist(package: str, about: str = "") -> None:
    """Have every child import *package* and call its `init_reductions()`; it sends objects of the module *about*."""
    _packages[package] = about
    ForkingPickler.register(Connection, _reduce_connection)
    for kind in (context.SpawnProcess, context.ForkServerProcess):
        _starting.close_after_start(kind)


class _Inherited(NamedTuple):
    """What only a child that is being started takes over; a running process keeps its own."""

    strategy: str
    sharing: bool
    tree: bytes
    descriptors: tuple[Any, Any] | None


def _reduce_connection(connection: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    popen = context.get_spawning_popen()
    rebuild, args = _original_reducer(connection)
    if popen is None and _native.by_value():
        return rebuild, args
    inherited = None
    if popen is not None:
        name, tree = strategy.get_sharing_strategy(), _enter()
        inherited = tuple(_Inherited(name, _native.share(None), tree, _starting.for_child_of(popen)))
    return join_family, (dict(_packages), inherited, rebuild, args)


_many.declare(_reduce_connection, lambda connection: "by claims")


def _enter() -> bytes:
    """Be in the tree; return its name."""
    # Where that fails, processes still start and talk. It will be said when memory is to be shared.
    lib.mpshm_attach()
    tree = ffi.new("unsigned char[]", lib.MPSHM_ID_SIZE)
    lib.mpshm_own_session(tree)
    return bytes(ffi.buffer(tree))


def _before_fork() -> None:
    if _packages:
        _enter()


os.register_at_fork(before=_before_fork)


def join_family(
    packages: dict[str, str], inherited: tuple[Any, ...] | None, rebuild: Callable[..., Any], args: Any
) -> Any:
    """Register as the sender has, then rebuild its connection."""
    for package, about in packages.items():
        _register(package, about)
    if inherited is not None:
        _take_over(_Inherited(*inherited))
    return rebuild(*args)


def family() -> Family | None:
    """What a launcher gives to its children for `arrive`; None when nobody has enlisted."""
    if not _packages:
        return None
    return Family(dict(_packages), strategy.get_sharing_strategy(), _enter(), _native.share(None))


def arrive(
    packages: dict[str, str], name: str, tree: bytes, sharing: bool = True, descriptors: tuple[Any, Any] | None = None
) -> None:
    """
    In a child, before anything else of the launcher's: be in the parent's tree, and remember its packages.

    *descriptors* are what `_starting.open_for_child` opened in the parent, each None or with a `detach` that gives its
    number here.
    """
    _awaited.update(packages)
    _take_over(_Inherited(name, sharing, tree, descriptors))


def register_loaded() -> None:
    """Before something is sent: register those packages that it may be about."""
    for package, about in _awaited.items():
        if not about or about in sys.modules:
            _register(package, about)


def _register(package: str, about: str) -> None:
    if package not in _packages:
        importlib.import_module(package).init_reductions()
        enlist(package, about)


def _take_over(inherited: _Inherited) -> None:
    global _joined
    if _joined:
        return
    _joined = True
    strategy.set_sharing_strategy(inherited.strategy)
    if not inherited.sharing:
        _native.share(False)
    _starting.enter(inherited.tree, inherited.descriptors)
