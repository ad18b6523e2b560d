"""Children: what a new process takes over from the process that starts it, and how it gets that.

    parent   `with_state`           puts it into the pickle of a connection, with descriptors where possible
             `inherited()`          returns it to a launcher, which sends it as the arguments of `attach`
    child    `rebuild_connection`, `attach`     apply the first that arrives, and no later one

Note [How a child is installed]
-------------------------------
A child started by spawn or forkserver begins as a bare interpreter. It imports the parent's main module, which may not
import this package, and unpickles its arguments. Data enters and leaves it only through a `Connection` among those
arguments: a queue has two. So the pickle of a connection carries the installation:

    parent: ForkingPickler(Connection) --> (rebuild_connection, (packages, inherited, original pickle))
    child:  rebuild_connection calls install() and watches for the packages' subjects, then rebuilds the connection.

This adds about 80 bytes to the pickle of a connection. A package of the parent is imported in the child when its
subject is needed (`packages.py`): a child that sends numbers does not import NumPy, and one that receives an array
imports what the pickle of the array names.

The connection also carries the session, so that parent and children share one manager, and both attach to it at once: a
message is kept while any process is attached to its session, and the parent must be attached before a child can send a
message and end. A forked child has inherited all of this; a hook before the fork attaches a parent that has made
connections. A parent without connections has no message to lose, and its fork costs what a fork costs.

The session is identified by its id and, where possible, by descriptors; see `child_descriptors.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import context

from mp_core.children import child_descriptors
from mp_core.sharing import backend, message_timeout, strategy
from mp_core.system import imports, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The packages and their subjects, and then the strategy, the session's id, whether messages share, the timeout.
Inherited = tuple[dict[str, tuple[str, ...]], str, bytes, bool, float | None]

_taken_over = False


# ---- the parent ------------------------------------------------------------------------------------------------------


def assert_travels(thing: Any) -> None:
    """
    Raise `RuntimeError` unless *thing* is pickled for a child that is being started, or in a message that may share.
    """
    if not backend.shares_now():
        context.assert_spawning(thing)


def with_state(rebuild: Callable[..., Any], args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """
    Return the reduction of a connection as `rebuild_connection`, with the state of this process if it starts a child.

    The connection's own reduction is *rebuild* with *args*.
    """
    popen = context.get_spawning_popen()
    if popen is None and backend.by_value():
        return rebuild, args
    state = None
    if popen is not None:
        state = (*_own(), child_descriptors.for_child_of(popen))
    return rebuild_connection, (packages.registered(), state, rebuild, args)


def inherited() -> Inherited | None:
    """The state that a launcher gives to its children for `attach`; None when this process is not installed."""
    return (packages.registered(), *_own()) if packages.is_installed() else None


def _own() -> tuple[str, bytes, bool, float | None]:
    sharing = backend.share(None)
    return strategy.get_sharing_strategy(), backend.own_session(), sharing, message_timeout.get_message_timeout()


def _is_fork_server() -> bool:
    """Return whether this process is the server of ``forkserver``. It has an address, has started no server, serves."""
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is None or server._forkserver_address is None:
        return False
    return server._forkserver_pid is None and server._inherited_fds is None


def before_fork() -> None:
    """Attach this process, which has connections, before it has a child."""
    # A fork server has imported us, but its children belong to the session of the process that has asked for them.
    if not _is_fork_server():
        backend.own_session()


# ---- the child -------------------------------------------------------------------------------------------------------


def rebuild_connection(
    subjects: dict[str, tuple[str, ...]], state: tuple[Any, ...] | None, rebuild: Callable[..., Any], args: Any
) -> Any:
    """Install as the sender has, then rebuild its connection."""
    packages.watch_all(subjects)
    if state is not None:
        _take_over(*state)
    return rebuild(*args)


def attach(
    subjects: dict[str, tuple[str, ...]], name: str, session: bytes, sharing: bool, timeout: float | None
) -> None:
    """In a launcher's child, before all else: attach to the parent's session, and install as the parent has."""
    packages.watch_all(subjects)
    _take_over(name, session, sharing, timeout, None)


def get_ready() -> None:
    """
    Import all that a message needs, which a child that was given no connection of multiprocessing has not yet.

    A process that has changed its root, or has no descriptor left, cannot import it later.
    """
    imports.load("multiprocessing.connection")


def _take_over(name: str, session: bytes, sharing: bool, timeout: float | None, descriptors: Any) -> None:
    """Apply the parent's state in its child: once, since a running process keeps its own."""
    global _taken_over
    if _taken_over:
        return
    _taken_over = True
    strategy.set_sharing_strategy(name)
    if timeout is not None:
        message_timeout.set_message_timeout(timeout)
    if not sharing:
        backend.share(False)
    child_descriptors.attach(session, descriptors)
