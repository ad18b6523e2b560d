"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """
    Return a TCP port of the loopback interface that no process uses now.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
