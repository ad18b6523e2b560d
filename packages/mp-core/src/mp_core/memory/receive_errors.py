"""Errors of a block that cannot be received: their reasons and their type.

The memory of such a message is freed: `native/memory/receive.c`, Note [A receive that fails].
"""

from __future__ import annotations

import errno
import os

from mp_core.sharing import backend
from mp_core.sharing.failed_calls import failed_call
from mp_core.system import settings
from mp_core.system.errors import NO_MANAGER, ReceiveError, SharedMemoryWarning, warn_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

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
    errno.EACCES: "the files of its session belong to another user; receive it as the user who sent it, or "
    "make a shared array before the process starts that changes its user",
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
    if backend.LIBSHM and number in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR):
        session = backend.session_of(handle).hex()
        folder = settings.runtime_folder()
        if not os.path.exists(os.path.join(folder, session)):
            return (
                f"its sender's processes cannot be reached from here, there is no folder {session} in {folder}. They "
                "run on another machine, in another container or mount namespace, as another user or with another "
                "MPSHM_RUNTIME_DIR, or all have ended. Where memory cannot be shared, send with "
                "set_sharing(False, connection)"
            )
    if number == errno.EPROTO:
        found = backend.refused_version() or "an older one"
        if found == backend.compiled_version():
            return "the control file of its sender's session is damaged: something has written to it"
        return (
            f"its sender shares through version {found} of libshm, this process through {backend.compiled_version()}; "
            "install the same mp-core for both"
        )
    return _general(number)


def _general(number: int) -> str:
    """Return the reason that an error number has for every message."""
    portable = "" if backend.LIBSHM else _PORTABLE.get(number, "")
    return portable or _REASONS.get(number) or failed_call(number)


def _taken_by_value(nbytes: int, number: int) -> None:
    """Warn, once, that a private array could not be shared and was copied instead."""
    warn_user(
        "received by value",
        f"an array of {nbytes} bytes (and maybe others) was received by value, because this process cannot use "
        f"its memory: {_general(number)}",
        SharedMemoryWarning,
    )


def setup() -> None:
    """Let a block that cannot be received raise the errors of this module."""
    backend.setup_receiving(None, refuse, _taken_by_value, None)
