"""Errors on receiving: their reasons, their type, and how they reach the right waiter.

Note [A receive error does not end a pipe]
------------------------------------------
`multiprocessing` takes an `OSError` or an `EOFError` from `get()` for the end of a pipe: a pool's thread ends silently,
and every caller waits. So a system error during unpickling is raised as a `ReceiveError`. Errors of the pipe itself
stay as they are: they come from reading, before unpickling begins.

Pools need more, since they do not expect `get()` to fail at all; see `standard_pools.py`.

The memory of such a message is freed: `native/receive.c`, Note [A receive that fails].

Note [Exceptions in frames]
---------------------------
A function that raises an exception from a local variable makes a circle: exception, traceback, frame, exception. It
would keep the frames of all callers, with their arrays and descriptors, until the garbage collector runs, which it
does not in a program that makes few objects. So such a function deletes the variable on its way out.
"""

from __future__ import annotations

import errno
import os

from mp_core import native, settings, standard_pools
from mp_core.errors import NO_MANAGER, ReceiveError, SharedMemoryWarning, warn_user
from mp_core.failed_calls import failed_call

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["extend", "refuse", "setup"]

_REASONS = {
    errno.ESTALE: "its handle was used before, or its memory is gone because its sender revoked it",
    errno.EMFILE: "this process has no descriptor left; raise the limit (ulimit -n) or close files",
    errno.ETIME: "its sender gave it a timeout (set_message_timeout), which has ended, and its memory was freed; "
    "receive messages sooner, or set a longer timeout",
    errno.ENFILE: "the system has no descriptor left; close files, or raise fs.file-max",
    errno.ENOMEM: "this process has no address space left to map it; check its limit (ulimit -v)",
    errno.EUSERS: "too many processes of this session use shared memory already; let some of them end",
    errno.ENOENT: "its memory is gone: its sender and the shared memory manager (shm-manager) were both killed before "
    "this process had attached that memory",
    **NO_MANAGER,
    errno.EACCES: "the files of its session belong to another user; receive it as the user who sent it",
}
_PORTABLE = {
    errno.ENOENT: "its memory is gone: its sender was killed or its processes have ended, or it has another /dev/shm; "
    "where memory cannot be shared, send with set_sharing(False, connection)",
    errno.EPERM: "its sender has another runtime folder (MPSHM_RUNTIME_DIR), other pids or another user; give both one "
    "runtime folder, or send with set_sharing(False, connection)",
    errno.ENOSYS: "its sender shares by libshm, and this process does not; set MP_WITHOUT_LIBSHM for both or for none",
    errno.ETIMEDOUT: "a process was stopped while it had the lock of this memory; kill -CONT it",
}


def refuse(number: int, handle: bytes) -> NoReturn:
    """Raise the error that says why the block of *handle* cannot be received."""
    if number == errno.EBADMSG:
        raise ValueError(f"the handle of a block of shared memory is damaged ({len(handle)} bytes)")
    raise ReceiveError(f"cannot receive a block of shared memory: {_reason(number, handle)}", number)


def _reason(number: int, handle: bytes) -> str:
    if native.LIBSHM and number in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR):
        session = native.session_of(handle).hex()
        folder = settings.runtime_folder()
        if not os.path.exists(os.path.join(folder, session)):
            return (
                f"its sender's processes cannot be reached from here, there is no folder {session} in {folder}. They "
                "run on another machine, in another container or mount namespace, as another user or with another "
                "MPSHM_RUNTIME_DIR, or all have ended. Where memory cannot be shared, send with "
                "set_sharing(False, connection)"
            )
    if number == errno.EPROTO:
        found = native.refused_version() or "an older one"
        return f"its sender shares through version {found} of libshm; install the same mp-core for both"
    return _general(number)


def _general(number: int) -> str:
    """Return the reason that an error number has for every message."""
    portable = "" if native.LIBSHM else _PORTABLE.get(number, "")
    return portable or _REASONS.get(number) or failed_call(number)


def _taken_by_value(nbytes: int, number: int) -> None:
    """Warn, once, that a private array could not be shared and was copied instead."""
    warn_user(
        "received by value",
        f"an array of {nbytes} bytes (and maybe others) was received by value, because this process cannot use "
        f"its memory: {_general(number)}",
        SharedMemoryWarning,
    )


def _failed(message: Any, error: BaseException) -> Any:
    """Return the message to receive instead of *message*; NotImplemented to raise *error* unchanged."""
    if not isinstance(error, Exception):
        return NotImplemented
    known = error
    if isinstance(error, OSError | EOFError):
        number = error.errno if isinstance(error, OSError) else None
        known = ReceiveError(f"a message could not be received: {type(error).__name__}: {error}", number)
        known.__cause__ = error
    task = standard_pools.failing(message, known)
    if task is not None:
        return task
    if known is not error:
        del message  # the traceback would keep it, and the buffer under it could not be closed
        try:
            raise known
        finally:
            del known, error  # see Note [Exceptions in frames]
    return NotImplemented


def setup() -> None:
    """Let a block that cannot be received raise the errors of this module."""
    native.setup_receiving(None, refuse, _taken_by_value, None)


def extend(loads: Any) -> None:
    """Let `native.loads`, which is to replace *loads* as `ForkingPickler.loads`, handle messages that fail."""
    native.setup_receiving(loads, None, None, _failed)
