"""Descriptors that a child which is started by exec gets beside those of its arguments.

    parent   for_child_of(popen)     opens those by which it attaches to its parent's session, once per child
             pass_on(popen, fds)     puts those of a connection with a ring into the child's socket
             Process.start returns   closes them all, whether the child was started or not
    child    attach(session, ...)    gives the first kind to the library
             taken(...)              returns the second kind

With the first kind a child needs no path: it can share even if the folder was removed or the child is another user's.
Without them it finds the folder by the session's id. Linux sends at most 253 descriptors in one message, so a fork
server takes no more for one child; where ours would exceed that, the child is pickled again without the first kind.

Note [Arguments with memory]
----------------------------
Arguments that refer to shared memory have in-flight references, which a child that does not start, or is killed before
it receives them, would leave for good. So they travel in the ring of a pipe, of which the child gets the reading end:

    the start fails                      the parent closes the last reading end, which frees what nobody has read
    the child dies before it has read    the parent sees its end, and closes the writing end, which does the same
    the child dies while it reads        a part is left in the ring: the parent discards the handles, of which nobody
                                         has a note before the last part was read
    the child dies after it has read     the reaper frees what it has not received (libshm's handle_log.c)

The parent keeps the writing end until it sees that the ring is empty or that the child has ended. The start waits for a
child with more than 64 KiB of arguments, as in multiprocessing. Without a ring, for want of descriptors, the parent
frees the arguments only if the start fails.

If the parent dies in between, the kernel closes them. If another thread forks in between, its child inherits a copy, as
it does of every descriptor of a process that is being started.
"""

from __future__ import annotations

import contextlib
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from multiprocessing import context, reduction
from multiprocessing.process import _children  # type: ignore[attr-defined]

from mp_core.children import passed_descriptors
from mp_core.sharing import backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# SCM_MAX_FD of Linux, minus the four descriptors that the fork server itself sends.
FORKSERVER_TAKES = 253 - 4

Duplicates = tuple["Any", "Any"]
Mark = tuple["Any", int, "Any", "Any"]
# The writing end, the handles of a message that goes through the ring in parts, and a lock of the threads that look.
Arguments = tuple["Any", list[bytes], "Any"]


class _Child:
    """A child that is being started, and the descriptors opened for it."""

    def __init__(self, closes: bool) -> None:
        self.opened: list[int] = []
        self.popen: Any = None
        self.room = closes  # true only inside `closing`, which closes them
        # The descriptors of connections, and the child that they are for.
        self.queue: passed_descriptors.Queue | None = None
        self.queue_of: Any = None
        self.closes_queue = closes
        # Its arguments: the ends of their pipe, or a message without one.
        self.arguments: Any = None
        self.message: Any = None

    def close(self) -> None:
        """Close them all. Idempotent; if a signal handler raises in the middle, call it again."""
        self.close_opened()
        self.close_pending()
        if self.arguments is not None:
            for end in self.arguments:
                end.close()
        self.arguments = None

    def close_opened(self) -> None:
        """Close those by which it attaches. Idempotent."""
        fds, self.popen = self.opened, None
        while fds:
            fd = fds[-1]
            del fds[-1]
            if fd >= 0:
                os.close(fd)

    def close_pending(self) -> None:
        """Close those of connections. Idempotent."""
        if self.queue is not None:
            self.queue.close()
        self.queue, self.queue_of = None, None


class _Start(threading.local):
    """The child that this thread is starting; one without a start beyond that."""

    child = _Child(False)


_start = _Start()


class _Trial(threading.local):
    under_way = False


#: While this thread pickles something to see whether that can be done: nobody receives the descriptors in it.
trial = _Trial()


def for_child_of(popen: Any) -> Duplicates | None:
    """Return descriptors for the child that *popen* starts; None if it has them already, or none is available."""
    child = _start.child
    if child.popen is popen or not child.room:
        return None
    child.close_opened()
    child.popen = popen
    child.opened = [*backend.open_descriptors_for_child()]
    first, second = child.opened
    if first < 0 and second < 0:
        return None
    duplicate: Any = vars(reduction).get("DupFd")  # not on Windows, where there is no descriptor to duplicate
    return None if first < 0 else duplicate(first), None if second < 0 else duplicate(second)


def attach(session: bytes, duplicates: Duplicates | None) -> None:
    """Attach this child to *session*. A child that shares in another session already stays there; both can talk."""
    if duplicates is None:
        backend.attach_to(session)
        return
    fds = [-1 if duplicate is None else duplicate.detach() for duplicate in duplicates]
    for fd in fds:
        if fd >= 0:
            close_on_exec(fd)
    backend.attach_by_descriptors(session, fds)


def close_on_exec(fd: int) -> None:
    """Do not pass a descriptor on to programs; where ioctl is refused, which Python calls, by fcntl."""
    try:
        os.set_inheritable(fd, False)
    except OSError:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)


def pass_on(popen: Any, fds: Sequence[int]) -> tuple[Any, int] | None:
    """
    Pass the descriptors of one connection to the child that *popen* starts.

    It returns arguments of `taken`, or None where each descriptor has to go by itself: nobody would close the socket (a
    program's own kind of process), or it has no room.
    """
    child = _start.child
    if not child.closes_queue:
        return None
    if child.queue is None:
        try:
            child.queue, child.queue_of = passed_descriptors.Queue(), popen
        except OSError:
            return None
    return child.queue.put(fds) if child.queue_of is popen else None


def taken(duplicate: Any, number: int, count: int) -> list[int]:
    """In the child: return the *count* descriptors of one connection."""
    return passed_descriptors.take(duplicate, number, count)


def too_many() -> bool:
    """Take our descriptors back if a fork server would refuse this thread's child because of them; return whether."""
    child = _start.child
    popen = context.get_spawning_popen()
    if not child.opened or popen is not child.popen or popen.method != "forkserver":
        return False
    if len(popen._fds) <= FORKSERVER_TAKES:
        return False
    child.close_opened()
    child.close_pending()
    popen._fds.clear()
    child.room = False
    return True


def send_arguments(message: Any, make_pair: Callable[[bool], Any]) -> Any:
    """Send the arguments of the child that this thread starts, and return the reading end; None if there is no ring."""
    child = _start.child
    popen: Any = context.get_spawning_popen()
    if popen is None or not child.closes_queue:  # a program's own kind of process
        message.leave()
        return None
    has_room = popen.method != "forkserver" or len(popen._fds) <= FORKSERVER_TAKES - 3
    ends = make_pair(False) if has_room else None
    child.arguments = ends
    if ends is None or ends[1]._offer_message(message) is not backend.SENT:
        child.message = message  # it has no ring, or the ring no room
    return None if ends is None else ends[0]


def _hand_over(child: _Child, popen: Any) -> None:
    """Leave the arguments to the child that has started."""
    if child.arguments is None:
        if child.message is not None:
            child.message.leave()
        return
    reader, writer = child.arguments
    handles: list[bytes] = []
    lock: Any = backend.TryLock()
    try:
        lock.wait()  # until all is sent, other threads must not find that it has been received
        popen.arguments = writer, handles, lock
        reader.close()
        child.arguments = None
        child.close_pending()  # a reading end is in there, and with it no send finds out that the child has died
        if child.message is not None:
            sent = child.message.handles
            with contextlib.suppress(BrokenPipeError):  # it has ended
                writer._send_unless(child.message, [])
                handles += sent
    finally:
        lock.release()


def is_done(arguments: Arguments, has_ended: bool) -> bool:
    """
    Return whether the child has received its *arguments* or will not; they are freed then. Any thread may ask, as
    `active_children` does.
    """
    writer, handles, lock = arguments
    try:
        if has_ended and not lock.is_mine():
            lock.wait()
        elif not lock.acquire():
            return False
        if writer.closed:
            return True
        count, has_rest = writer._messages(), writer._has_rest()  # in this order: it may read them now
        if not has_ended and (count or has_rest):
            return False
        while has_rest and handles:  # a signal handler that raises loses one of them
            backend.discard(handles.pop())
        writer.close()
        return True
    finally:
        lock.release()


def mark() -> Mark:
    """Return what `take_back` needs, before an attempt to pickle for the child that this thread is starting."""
    popen = context.get_spawning_popen()
    return popen, len(getattr(popen, "_fds", ())), _start.child.opened, _start.child.queue


def take_back(before: Mark) -> None:
    """Take back the descriptors that an attempt to pickle has passed on: it is pickled again."""
    popen, count, opened, queue = before
    if popen is None:
        return
    child = _start.child
    if child.opened is not opened:
        child.close_opened()
    if child.queue is not queue:
        child.close_pending()
    if hasattr(popen, "_fds"):
        del popen._fds[count:]


def closing(start: Callable[[Any], Any], process: Any) -> Any:
    """Return *start(process)*, and close the descriptors of that child after its start, successful or not."""
    before = _start.child  # pickling an argument may start a process of its own
    child = _Child(True)
    try:
        _start.child = child
        # The process has it already if a signal handler raises below: it can be ended.
        try:
            process._popen = popen = start(process)
        except OSError:
            raise
        except BaseException:  # of a signal handler: the child may have started
            if child.message is not None and child.arguments is None:
                child.message.leave()
            raise
        process._sentinel = popen.sentinel
        _children.add(process)
        _hand_over(child, popen)
        return popen
    finally:
        try:
            child.close()
        except BaseException:  # of a signal handler
            # In a thread, where no handler of a second signal interrupts it.
            try:
                start_new_thread(child.close, ())
            except RuntimeError as refusal:  # there can be no more threads
                from mp_core.system.handler_errors import is_of_handler  # which pickling has imported

                if not is_of_handler(refusal):
                    child.close()
            raise
        finally:
            _start.child = before
