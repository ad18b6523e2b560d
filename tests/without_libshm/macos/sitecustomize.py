"""Stand-in for macOS: every interpreter that has this folder on PYTHONPATH has what CPython has on macOS, and no more.

It hides the functions and constants of Linux, /proc and /dev/shm; and it has the names of threads of macOS's C library.
Its shared memory is that of `macos_memory`. It cannot show how macOS's kernel behaves.
"""

import builtins
import ctypes
import fcntl
import io
import os
import select
import signal
import sys

sys.platform = "darwin"
for name in ("epoll", *filter(lambda name: name.startswith("EPOLL"), dir(select))):
    delattr(select, name)

import socket  # noqa: E402  after that, because it imports selectors, which chooses a selector

HIDDEN = {
    os: "pidfd_open memfd_create eventfd sched_getaffinity sched_setaffinity P_PIDFD pipe2 splice posix_fallocate",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGPWR SIGPOLL SIGSTKFLT SIGRTMIN SIGRTMAX SIGCLD",
    fcntl: "F_SETSIG F_GETSIG F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK",
    socket: "SO_PEERCRED SO_PASSCRED SCM_CREDENTIALS SO_DOMAIN SO_PROTOCOL SOCK_CLOEXEC SOCK_NONBLOCK",
}
if sys.version_info < (3, 13):
    HIDDEN[os] += " waitid P_PID P_PGID P_ALL WNOWAIT WEXITED waitid_result"
for module, names in HIDDEN.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

_signals = {s for s in signal.valid_signals() if s < 32} - {16, 29, 30}  # those of Linux alone
signal.valid_signals = lambda: set(_signals)


def _without_proc(function):
    def wrapper(path=".", *args, **options):
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc", "/dev/shm")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **options)

    return wrapper


builtins.open = io.open = _without_proc(io.open)
os.open, os.listdir, os.stat = _without_proc(os.open), _without_proc(os.listdir), _without_proc(os.stat)
os.scandir, os.readlink = _without_proc(os.scandir), _without_proc(os.readlink)


class _Library:
    """The functions of macOS's C library that name the calling thread, of which one takes a thread; and mappings."""

    name = b""

    def __getattr__(self, name):
        assert name in ("mmap", "munmap"), name
        return getattr(_libc, name)

    def pthread_setname_np(self, name):
        assert isinstance(name, bytes) and len(name) < 64
        type(self).name = name
        return 0

    class pthread_self:
        def __new__(cls):
            return 1

    def pthread_getname_np(self, thread, name, size):
        name.value = self.name
        return 0


_original = ctypes.CDLL
_libc = _original(None, use_errno=True)
ctypes.CDLL = lambda name, *args, **options: _original(name, *args, **options) if name else _Library()

import runpy  # noqa: E402

runpy.run_path(os.path.join(os.path.dirname(__file__), "../macos_memory/sitecustomize.py"))
