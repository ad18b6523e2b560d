"""Messages that are still in a pipe when its last reading end is closed: their memory is freed.

Note [The last reading end]
---------------------------
No process will ever read what is in a pipe without reading ends. The process that closes the last one can know that,
because the kernel counts the ends, whichever processes have inherited them:

    something is in the pipe              ioctl FIONREAD
    open a writing end, W                 through /proc/self/fd
    close the reading end
    W has no reader (POLLERR)?            no: another process reads on
    open a reading end, read all, close   what was in the pipe is there as long as W is open
    discard the handles in it             each carries a checksum (native/memory/receive.c)
    close W

- A process that writes between the two reading ends gets EPIPE, as it should, and takes its references back. A process
  that writes beside the second has put its message into a closed pipe: the loop looks again.
- A process that is killed in between, at any line, leaves a leak, and the kernel closes its descriptors. A stopped
  process has an end of a pipe, as it had before.
- A thread that forks meanwhile would leave W to its child. A lock keeps forks out.
- A process without descriptors or /proc, or whose user has changed, cannot open W: the memory stays in flight.

A reader that is killed closes its end without looking. A writer that closes its own end, which is W then, looks in its
place; what several writers find at once, each handle frees once.

This is for anonymous pipes, which `Queue`, `SimpleQueue` and ``Pipe(False)`` have without a ring; with one,
`native/channels/unread.c` takes the messages from the ring in the same steps. The kernel tells nothing about the
other holders of a socket, so a reader of ``Pipe()`` is left out; a writer of one with a ring is not. So is what a child
of multiprocessing has sent when it ends without closing. `set_message_timeout` is for these.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading

from mp_core.sharing import forks
from mp_core.sharing.backend import discard_unread

_lock = threading.RLock()  # a finaliser may run in a thread that has it
# The second is of a module that cannot be read.
_NO_DESCRIPTOR = OSError, ImportError


def close_reader(fd: int) -> bool:
    """
    Close a reading end and free the memory of what nobody can read any more; False, and nothing is done, if the pipe
    is empty.
    """
    with _lock:
        try:
            if not _nbytes_in(fd) or not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:["):
                return False
            writer = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except _NO_DESCRIPTOR:
            return False
        try:
            os.close(fd)
            _discard_all(writer)
        finally:
            os.close(writer)
        return True


def look_before_closing_writer(fd: int) -> None:
    """Free the memory of what was written to a pipe that has lost its last reader."""
    with _lock:
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:["):
                return
        except OSError:
            return
        _discard_all(fd)


def _discard_all(writer: int) -> None:
    try:
        while _is_without_reader(writer) and _nbytes_in(writer):
            discard_unread(_content(writer))
    except _NO_DESCRIPTOR:
        pass  # without a descriptor the messages stay in flight


def _nbytes_in(fd: int) -> int:
    import termios  # a library of its own, which few programs need

    number: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    return number


def _is_without_reader(writer: int) -> bool:
    poll = select.poll()
    poll.register(writer, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _content(writer: int) -> bytes:
    reader = os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts = []
    try:
        while part := os.read(reader, 1 << 20):
            parts.append(part)
    except BlockingIOError:
        pass
    finally:
        os.close(reader)
    return b"".join(parts)


forks.keep_out(_lock)
