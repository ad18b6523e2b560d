"""Stand-in for Windows, imported before mp_all: it hides what CPython does not have there.

The standard library stays that of Linux, so nothing is started: imports, pickles and refusals are what this can show.
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
