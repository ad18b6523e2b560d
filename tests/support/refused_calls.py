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
        "eventfd2": 290,
        "getsockopt": 55,
        "memfd_create": 319,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "socketpair": 53,
    },
    "aarch64": {
        "accept4": 242,
        "eventfd2": 19,
        "getsockopt": 209,
        "memfd_create": 279,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "socketpair": 199,
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
