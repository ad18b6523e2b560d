"""Stand-in for Windows, imported before mp_all: it hides what CPython does not have there.

The standard library stays that of Linux, so nothing is started: imports, pickles and refusals are what this can show,
and which functions of kernel32 are called.
"""

import concurrent.futures.process  # noqa: F401  the standard library's own imports come first
import multiprocessing.pool
import multiprocessing.util  # noqa: F401
import os
import signal
import sys
from multiprocessing import connection, context, queues, reduction, synchronize  # noqa: F401

import numpy as np  # noqa: F401


class PipeConnection(connection.Connection):
    """Windows has a class for pipes."""


connection.PipeConnection = PipeConnection
connection.reduce_pipe_connection = lambda pipe: (str, ("a pipe of Windows",))

HIDDEN = {
    context: "ForkProcess ForkServerProcess ForkContext ForkServerContext",
    reduction: "DupFd",
    os: "fork forkpty register_at_fork geteuid sysconf waitid pidfd_open get_blocking set_blocking sched_getaffinity",
    signal: "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCONT SIGTSTP pthread_sigmask pthread_kill",
}
for module, names in HIDDEN.items():
    for name in names.split():
        delattr(module, name)
for name in ("fcntl", "termios", "resource", "pwd", "grp"):
    sys.modules[name] = None
sys.platform = "win32"


# ---- mutexes and sections --------------------------------------------------------------------------------------------

import atexit  # noqa: E402
import ctypes  # noqa: E402
from multiprocessing import resource_tracker, shared_memory  # noqa: E402

mutexes = 0


class _Kernel32:
    """The functions of kernel32 for mutexes, of one process."""

    class CreateMutexW:
        restype = None

        def __new__(cls, security, owned, name):
            global mutexes
            mutexes += 1
            assert name.value.startswith("Local\\mps-")
            return 1

    class OpenProcess:
        restype = None

        def __new__(cls, access, inherited, pid):
            return 1

    class GetCurrentThread:
        restype = None

    def WaitForSingleObject(self, handle, milliseconds):
        return 0 if milliseconds else 0x102

    def ReleaseMutex(self, handle):
        return 1

    CloseHandle = ReleaseMutex


ctypes.WinDLL = lambda name, use_last_error: _Kernel32()
resource_tracker.register = resource_tracker.unregister = lambda name, kind: None
_SharedMemory = shared_memory.SharedMemory


class SharedMemory(_SharedMemory):
    """A section, which goes with this program."""

    def __init__(self, name=None, create=False, size=0, **options):
        super().__init__(name, create, size, **options)
        if create:
            atexit.register(os.unlink, f"/dev/shm/{name}")


shared_memory.SharedMemory = SharedMemory
