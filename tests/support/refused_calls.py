"""System calls that a filter refuses from now on, as the seccomp profile of a container does."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

__all__ = ["refuse"]

NUMBERS = {
    "x86_64": {
        "accept4": 288,
        "bind": 49,
        "clone": 56,
        "clone3": 435,
        "close_range": 436,
        "connect": 42,
        "dup2": 33,
        "dup3": 292,
        "epoll_create1": 291,
        "epoll_ctl": 233,
        "epoll_wait": 232,
        "eventfd2": 290,
        "fallocate": 285,
        "fcntl": 72,
        "flock": 73,
        "ftruncate": 77,
        "getdents64": 217,
        "getrandom": 318,
        "getsockname": 51,
        "getsockopt": 55,
        "inotify_add_watch": 254,
        "inotify_init1": 294,
        "ioctl": 16,
        "kill": 62,
        "link": 86,
        "linkat": 265,
        "listen": 50,
        "madvise": 28,
        "memfd_create": 319,
        "mkdir": 83,
        "mkdirat": 258,
        "mremap": 25,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pipe2": 293,
        "poll": 7,
        "ppoll": 271,
        "prctl": 157,
        "pread64": 17,
        "prlimit64": 302,
        "readlink": 89,
        "readlinkat": 267,
        "recvfrom": 45,
        "recvmsg": 47,
        "rmdir": 84,
        "sched_getaffinity": 204,
        "sched_setaffinity": 203,
        "sched_yield": 24,
        "sendmsg": 46,
        "sendto": 44,
        "setsid": 112,
        "setsockopt": 54,
        "shutdown": 48,
        "sigaltstack": 131,
        "socket": 41,
        "socketpair": 53,
        "statfs": 137,
        "sysinfo": 99,
        "tgkill": 234,
        "unlink": 87,
        "unlinkat": 263,
        "utimensat": 280,
        "vfork": 58,
        "wait4": 61,
        "waitid": 247,
    },
    "aarch64": {
        "accept4": 242,
        "bind": 200,
        "clone": 220,
        "clone3": 435,
        "close_range": 436,
        "connect": 203,
        "dup3": 24,
        "epoll_create1": 20,
        "epoll_ctl": 21,
        "eventfd2": 19,
        "fallocate": 47,
        "fcntl": 25,
        "flock": 32,
        "ftruncate": 46,
        "getdents64": 61,
        "getrandom": 278,
        "getsockname": 204,
        "getsockopt": 209,
        "inotify_add_watch": 27,
        "inotify_init1": 26,
        "ioctl": 29,
        "kill": 129,
        "linkat": 37,
        "listen": 201,
        "madvise": 233,
        "memfd_create": 279,
        "mkdirat": 34,
        "mremap": 216,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "pipe2": 59,
        "ppoll": 73,
        "prctl": 167,
        "pread64": 67,
        "prlimit64": 261,
        "readlinkat": 78,
        "recvfrom": 207,
        "recvmsg": 212,
        "sched_getaffinity": 123,
        "sched_setaffinity": 122,
        "sched_yield": 124,
        "sendmsg": 211,
        "sendto": 206,
        "setsid": 157,
        "setsockopt": 208,
        "shutdown": 210,
        "sigaltstack": 132,
        "socket": 198,
        "socketpair": 199,
        "statfs": 43,
        "sysinfo": 179,
        "tgkill": 131,
        "unlinkat": 35,
        "utimensat": 88,
        "wait4": 260,
        "waitid": 95,
    },
}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def refuse(*names: str, error: int = errno.EPERM) -> None:
    """
    Let these calls fail with *error*, in this process and its children; without such filters, exit and print "skip".
    """
    numbers = NUMBERS.get(platform.machine(), {})
    code = [(LOAD, 0, 0, 0)]
    for name in names:
        code += [(JUMP_IF_EQUAL, 0, 1, numbers.get(name, 0xFFFF)), (RETURN, 0, 0, REFUSE | error)]
    code.append((RETURN, 0, 0, ALLOW))
    rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(rules))
    libc = ctypes.CDLL(None, use_errno=True)
    if not numbers or libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, program, 0, 0):
        print("skip")
        raise SystemExit
