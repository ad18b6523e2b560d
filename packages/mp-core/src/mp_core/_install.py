"""Installation: in this process, and in the children that it starts.

Note [Replaced attributes]
--------------------------
    install()                    ForkingPickler.dumps, reduction.dump, Connection.send    _pickling.py
                                 with MP_TRACE=1: ForkingPickler.dumps, Queue.put         _trace.py
                                 ForkingPickler.loads                                     _receiving.py
                                 the reducer of Connection; a hook before each fork       this module
    on macOS, the finalizer of the resource tracker          _resource_tracker.py
                                 _Popen of SpawnProcess and ForkServerProcess             _child_descriptors.py
    import mp_core               entries for Block and Lease in ForkingPickler's table    block.py, lease.py
    init_reductions()            that table itself, which then serves subclasses          _reducers.py
    import mp_all                a finder for mp_all.queues and the like                  _aliases.py
                                 BaseContext.Pool                                         mp_pool/_contexts.py
                                 a finder that registers mp_cuda with a CUDA library      mp_cuda/libraries.py

Note [How a child is installed]
-------------------------------
A child started by spawn or forkserver begins as a bare interpreter. It imports the parent's main module, which may not
import this package, and unpickles its arguments. Data enters and leaves it only through a `Connection` among those
arguments: a queue has two, a pool four. So the pickle of a connection carries the installation:

    parent: ForkingPickler(Connection) --> (rebuild_connection, (packages, inherited, original pickle))
    child:  rebuild_connection calls install() and the packages' init_reductions(), then rebuilds the connection.

This adds about 80 bytes to the pickle of a connection, and one dictionary look-up once the packages are registered.

The connection also carries the session, so that parent and children share one manager, and both attach to it at once: a
message is kept while any process is attached to its session, and the parent must be attached before a child can send a
message and end. A forked child has inherited all of this; a hook before the fork attaches its parent.

The session is identified by its id and, where possible, by descriptors; see `_child_descriptors.py`. The
whole state that a child takes over is in `_child_session.py`.

A launcher that gives its children no connection sends an `Inherited` itself. Its child calls `attach` first, and
`register_loaded` before it sends: that function leaves out a package whose subject is not imported, so that a child
which has no arrays does not wait for NumPy.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing import connection as _connection
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core import (
    _channels,
    _child_descriptors,
    _child_session,
    _fan_out,
    _native,
    _pickling,
    _platform,
    _receiving,
    _resource_tracker,
)
from mp_core._child_session import Inherited

__all__ = ["Inherited", "attach", "inherited", "install", "rebuild_connection", "register", "register_loaded"]

# The reducer of each class of connections; Windows has a class for pipes too.
_original_reducers: dict[type, Any] = {
    getattr(_connection, kind): vars(_connection)[reducer]
    for kind, reducer in (("Connection", "reduce_connection"), ("PipeConnection", "reduce_pipe_connection"))
    if hasattr(_connection, kind)
}
_original_reducers[_channels.ChannelConnection] = _channels.reduce_channel
_installed = False
# Each registered package, and the module whose objects it sends. Children import these packages.
_packages: dict[str, str] = {}
# The parent's packages that `register_loaded` has to register.
_awaited: dict[str, str] = {}


def install() -> None:
    """
    Let the messages of ``multiprocessing`` carry shared memory, in this process and in children started after.

    It replaces ``ForkingPickler.dumps`` and ``loads``, ``reduction.dump``, and ``send`` and ``_close`` of
    ``Connection``: a message that fails, or that nobody reads before its pipe is closed, frees the memory of its
    blocks, an error on receiving is a `ReceiveError`, and `set_sharing` works for one connection. Children inherit the
    sharing strategy and the session.

    ``import mp_all`` and every ``init_reductions`` call it; importing ``mp_core`` does not. Calling it again does
    nothing.

    Examples
    --------
    >>> mp.install()
    """
    global _installed
    if _installed:
        return
    _installed = True
    _pickling.install()
    _receiving.install()
    _resource_tracker.install()
    if _platform.has_engine():
        from mp_core import _unread

        _unread.install()
    if os.environ.get("MP_TRACE", "") == "1":
        from mp_core import _trace

        _trace.install()
    for kind in _original_reducers:
        ForkingPickler.register(kind, _reduce_connection)
    for method in ("SpawnProcess", "ForkServerProcess"):  # Windows has the first only
        if hasattr(context, method):
            _child_descriptors.close_after_start(getattr(context, method))


def register(package: str, about: str = "") -> None:
    """Have every child import *package* and call its `init_reductions()`; it sends objects of the module *about*."""
    install()
    _packages[package] = about


def _reduce_connection(connection: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    popen = context.get_spawning_popen()
    rebuild, args = _original_reducers[type(connection)](connection)
    if popen is None and _native.by_value():
        return rebuild, args
    state = None
    if popen is not None:
        state = _child_session.for_child_of(popen)
    return rebuild_connection, (dict(_packages), state, rebuild, args)


_fan_out.declare(_reduce_connection, lambda connection: "by reference")


def rebuild_connection(
    packages: dict[str, str], state: tuple[Any, ...] | None, rebuild: Callable[..., Any], args: Any
) -> Any:
    """Register as the sender has, then rebuild its connection."""
    install()
    for package, about in packages.items():
        _register(package, about)
    if state is not None:
        _child_session.take_over(_child_session.State(*state))
    return rebuild(*args)


def inherited() -> Inherited | None:
    """The state that a launcher gives to its children for `attach`; None when this process is not installed."""
    if not _installed:
        return None
    return _child_session.for_launcher(_packages)


def attach(packages: dict[str, str], name: str, session: bytes, sharing: bool, message_timeout: float | None) -> None:
    """In a launcher's child, before all else: attach to the parent's session, and remember its packages."""
    install()
    _awaited.update(packages)
    _child_session.take_over(_child_session.State(name, session, sharing, message_timeout))


def register_loaded() -> None:
    """Register those packages of the parent whose subject is imported. Call it before something is sent."""
    for package, about in _awaited.items():
        if not about or about in sys.modules:
            _register(package, about)


def _register(package: str, about: str) -> None:
    if package not in _packages:
        importlib.import_module(package).init_reductions()
        register(package, about)


def _is_fork_server() -> bool:
    """Return whether this process is the server of ``forkserver``. It has an address, has started no server, serves."""
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is None or server._forkserver_address is None:
        return False
    return server._forkserver_pid is None and server._inherited_fds is None


def _before_fork() -> None:
    # The parent attaches before it has a child. A fork server may have imported us (since Python 3.14.10 it imports the
    # main module), but its children belong to the session of the process that has asked for them.
    if _installed and not _is_fork_server():
        _native.own_session()


_platform.register_at_fork(before=_before_fork)
