"""The task ring between the pool and one worker, or a socket of packets where there can be no ring.

Both kinds have the methods of `mp_core.sharing.backend.TaskRing`: two directions in shared memory, and the word that
says which tasks the worker has begun (`libshm/src/channel/claims.c`). A message is a number, a kind and bytes.

    pool      spin, first, skip      wait a moment for a result, look at it, and drop it once it is delivered
              send, take_all         never wait; send raises `BlockingIOError` if there is no room, or no worker
              take_back(until)       the tasks from the result up to that number are the pool's again
    worker    take, wait, send_all
              claim(number)          False for a task that was taken back

Note [Packets instead of a ring]
--------------------------------
Without libshm, `socketpair`, a memfd or a descriptor for it, a `TaskSocket` takes the ring's place, and keeps the
same promises: a worker has one task at a time and sends `BEGUN` before it begins it. A task that is at a worker is the
pool's again when the worker has died without that.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import operator
import os
import select
import signal
import socket
from multiprocessing import reduction

from mp_core.children import death_pipe, inheritance
from mp_core.sharing import backend
from mp_core.sharing.backend import LONGEST
from mp_pool.tasks.task_messages import BEGUN, HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNSENT = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EPIPE, errno.ECONNRESET)
_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_PACKETS = socket.SOCK_SEQPACKET


def make_task_ring() -> Any:
    """Return the pool's end of a new ring."""
    ring = backend.make_task_ring()
    if isinstance(ring, backend.TaskRing):
        return ring
    return TaskSocket(*socket_pair())


def socket_pair() -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets of packets, also where a sandbox refuses the system call socketpair."""
    try:
        # The sockets have an owner at once: the functions of the module socket make others of their numbers.
        return _socket.socketpair(socket.AF_UNIX, _PACKETS)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        try:
            return _pair_by_address()
        except OSError:
            raise error from None


def _pair_by_address() -> tuple[_socket.socket, _socket.socket]:
    """
    Connect two sockets by an address in Linux's abstract namespace, which leaves no file.

    Another process may see the address and connect first, but it cannot have the address of *near*.
    """
    listener, near = (_socket.socket(socket.AF_UNIX, _PACKETS) for _ in range(2))
    mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        for each in (listener, near):
            each.bind(b"\0mp-pool-" + os.urandom(16))
        listener.listen()
        near.connect(listener.getsockname())
        # A signal handler that raises just after _accept would leave a number that nobody closes.
        _signal.pthread_sigmask(signal.SIG_BLOCK, _signal.valid_signals())
        while True:
            fd, address = listener._accept()  # type: ignore[attr-defined]
            far = _socket.socket(socket.AF_UNIX, _PACKETS, 0, fd)
            if address == near.getsockname():
                return near, far
            far.close()
    except BaseException:
        near.close()
        raise
    finally:
        _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        listener.close()


class TaskSocket:
    """One end of a socket in the place of a ring, see Note [Packets instead of a ring]; *far* is the worker's."""

    def __init__(self, near: _socket.socket, far: _socket.socket | None = None) -> None:
        self._socket, self._far = near, far
        self._socket.setblocking(far is None)
        self.claimed = 0
        self.hung_up = False
        self.fileno = near.fileno

    def ends(self) -> tuple[int, int]:
        """Return the descriptors for the worker; -1 stands for the memory of a ring."""
        assert self._far is not None
        return self._far.fileno(), -1

    def close_ends(self) -> None:
        if self._far is not None:
            self._far.close()

    def close(self) -> None:
        """Close it. Idempotent."""
        self.close_ends()
        self._socket.close()

    def send(self, number: int, kind: int, data: Any) -> None:
        """Send a message; raise `BlockingIOError` if there is no room now, or no worker any more."""
        try:
            self._socket.send(HEADER.pack(number, kind) + data)
        except OSError as error:
            if error.errno in _UNSENT:
                raise BlockingIOError(error.errno, os.strerror(error.errno)) from None
            raise

    dump: Any = staticmethod(operator.call)  # of a function that pickles the next message

    def send_all(self, number: int, kind: int, data: Any) -> None:
        """Send a message; wait for room."""
        self._socket.send(HEADER.pack(number, kind) + data)

    send_part = send_all

    def _receive(self, most: int, flags: int = 0) -> bytes:
        while True:
            try:
                return self._socket.recv(most, flags | socket.MSG_DONTWAIT)
            except ConnectionResetError:
                pass  # told once: the other end was closed before it had read all; its own messages are still there

    def take(self) -> tuple[int, int, bytes] | None:
        """Return the oldest message; None if none is there."""
        try:
            packet = self._receive(HEADER.size + LONGEST)
        except BlockingIOError:
            return None
        if not packet:
            self.hung_up = True
            return None
        number, kind = HEADER.unpack_from(packet)
        return number, kind, packet[HEADER.size :]

    def take_all(self) -> list[tuple[int, int, bytes]]:
        messages = []
        while (message := self.take()) is not None:
            if message[1] == BEGUN:
                self.claimed = message[0] + 1
            else:
                messages.append(message)
        return messages

    def spin(self) -> bool:
        """Return False: nobody looks for packets without a system call."""
        return False

    def wait(self) -> bool:
        """Return True when there is a message, False at the end of the other process."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll()
        try:
            return bool(self._receive(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True

    def claim(self, number: int) -> bool:
        """Tell the pool that the task is begun."""
        self.send_all(number, BEGUN, b"")
        return True

    def take_back(self, until: int) -> int:
        """Return the first of the tasks that a worker has not begun, which has ended."""
        first = min(self.claimed, until)
        self.claimed = max(self.claimed, until)
        return first


class WorkerEnds:
    """
    A worker's descriptors: the socket and the memory of the ring, and the death pipe; -1 until they are there. That of
    the file for stacks is the pool's own, or of a process that is not forked.

    They could go to the worker as a connection. But a spawned process that receives a connection imports the standard
    library's connections, and with them what messages need, before its first task: more than half of what it imports.
    So their pickle carries what the pickle of a connection does (`mp_core.children.inheritance`), and the worker
    imports the rest when it first waits after a task.
    """

    def __init__(self, fd: int = -1, memory: int = -1, death: int = -1, index: int = 0) -> None:
        self.index = index  # the worker's number
        self.fd = fd
        self.memory = memory
        self.death = death
        self.stacks = -1
        self.mask: Any = None  # the signals that the pool's thread has blocked, if a forked worker begins with all

    def open(self) -> Any:
        """Return the worker's end of the ring, which has the descriptors from now on; end with the pool's process."""
        death, self.death = self.death, -1
        if death >= 0 and death_pipe.arm(death):
            os.close(death)
        fd, memory = self.fd, self.memory
        self.fd = self.memory = -1
        if memory < 0:
            return TaskSocket(socket.socket(socket.AF_UNIX, _PACKETS, 0, fd))
        ring = backend.open_task_ring(fd, memory)
        if isinstance(ring, int):
            raise OSError(-ring, f"the ring of this worker: {os.strerror(-ring)}")
        return ring

    def close(self) -> None:
        """Close all. Idempotent; if a signal handler raises in the middle, call it again."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        memory, self.memory = self.memory, -1
        if memory >= 0:
            os.close(memory)
        death, self.death = self.death, -1
        if death >= 0:
            os.close(death)

    def __reduce__(self) -> tuple[Any, ...]:
        from mp_core.system.pickled_call import PickledCall  # not at the top: a worker does not need it

        memory = None if self.memory < 0 else reduction.DupFd(self.memory)
        stacks = None if self.stacks < 0 else reduction.DupFd(self.stacks)
        # The worker arms its death pipe as it unpickles this, and only then attaches its session: a worker that begins
        # after the pool's process has ended would make the folder of the session again, and be killed in it.
        armed = PickledCall(_arm, reduction.DupFd(self.death))
        return inheritance.with_state(_rebuild, (reduction.DupFd(self.fd), memory, armed, stacks, self.index))


def _arm(duplicate: Any) -> None:
    fd = duplicate.detach()
    if death_pipe.arm(fd):
        os.close(fd)


def _rebuild(fd: Any, memory: Any, armed: None, stacks: Any, index: int) -> WorkerEnds:
    ends = WorkerEnds(fd.detach(), -1 if memory is None else memory.detach(), -1, index)
    ends.stacks = -1 if stacks is None else stacks.detach()
    return ends
