"""Hooks around a fork: one table for all modules of Python.

    keep_out(lock)                      no other thread has the lock at a fork, and the child's is free
    register(before, after_in_child)    functions

`fork_hooks.c` has the table and calls the hooks: an exception that a signal handler raises during a fork reaches
the caller of the fork, and no hook is left half done. libshm has hooks of its own (`libshm/src/session/fork.c`), which
run inside of these.
"""

from __future__ import annotations

from mp_core.sharing import backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Hook = Callable[[], object]


def keep_out(lock: Any) -> None:
    """
    Acquire *lock*, a `threading.RLock`, before each fork, release it in the parent, and make it new in the child.

    Parameters
    ----------
    lock : threading.RLock
        It guards what a child must not find half done. A thread that has it must not wait for one that forks.

    Examples
    --------
    >>> mp_core.sharing.forks.keep_out(threading.RLock())
    """
    backend.register_at_fork(lock.acquire, lock.release, lock._at_fork_reinit)


def register(*, before: Hook | None = None, after_in_child: Hook | None = None) -> None:
    """
    Register functions as `os.register_at_fork` does. Nothing happens on a system that cannot fork.

    Parameters
    ----------
    before : callable, optional
        It is called in the parent before it forks, the one that was registered last first; and once more if a signal
        handler has raised in it, so it must begin again then.
    after_in_child : callable, optional
        It is called in the child, where no signal handler runs before it has returned.

    Examples
    --------
    >>> mp_core.sharing.forks.register(after_in_child=lambda: None)
    """
    backend.register_at_fork(before, None, after_in_child)
