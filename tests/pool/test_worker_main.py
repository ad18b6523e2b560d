"""The worker's side of the socket: a task that comes in several packets."""

from __future__ import annotations

import socket
import threading

from mp_pool import worker_main


def test_a_long_task_is_read_to_its_end_even_if_the_parent_sends_slowly() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        later = threading.Timer(0.05, near.send, [b"the end"])
        later.start()
        assert worker_main._rest(far.fileno(), memoryview(b"begun, "), 14) == b"begun, the end"
        later.join()
