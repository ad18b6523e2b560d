"""Queues over channels: `SimpleQueue`, `Queue` and `JoinableQueue`.

Note [Queues without locks and threads of their own]
----------------------------------------------------
The standard queues put a lock around each end of their pipe. A process that is killed in `get` has the lock, and no
other process gets a message again. The ring of a channel has locks of its own, which the kernel takes from a dead
process. Other code may use `_rlock` and `_wlock`, so they exist, as words in the ring (`_RingLock`).

The standard queues count in semaphores, and a process that is killed between a count and its message leaves the count
wrong for good. Here the messages are the count (libshm's `channel/places.c`): a queue is full when *maxsize* messages
are in it, and a task is a message until `task_done`.

The standard `Queue.put` leaves pickling and sending to a feeder thread. This one pickles at once, and writes into the
ring if there is room:

    put    wait for a place --> pickle --> room, and nothing waits for the thread?
                                             yes: into the ring
                                             no:  reserve the place, bytes to the feeder thread, which waits for room

So an object that changes after `put` does not change its message, and `put` still never waits for a reader. An error of
pickling goes to `_on_queue_feeder_error`, as before, or is raised if `set_strict_put` says so.

A message that needs no pickler takes one call into C for the pickle and the ring. The fast path is taken only when the
feeder thread is idle. The feeder sets `feeding` before it pops a message and clears it after sending, so checking
without a lock is safe: a message never passes an earlier one of the same thread.

The feeder thread owns the reservations of its process: they are dropped with the messages if the process is killed.
"""

from __future__ import annotations

import errno
import math
import operator
import os
import threading
import time
import weakref
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing import process, queues, synchronize, util
from queue import Empty, Full

from mp_core.children.inheritance import assert_travels
from mp_core.sharing import backend
from mp_core.sharing.backend import recorders
from mp_core.system import imports, settings
from mp_core.system.errors import user_line, warn_user
from mp_core.system.fan_out import declare_one_receiver
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_strict = settings.strict_put()
_SENTINEL: Any = vars(queues)["_sentinel"]
_Base: Any = queues.Queue
_MOST: int = vars(synchronize)["SEM_VALUE_MAX"]
SENT = backend.SENT
_EXPIRED = object()  # what `get` finds in place of a message that has not come in time
_LONG_WAIT_S = 1  # after which `get` looks whether a message can come at all


def set_strict_put(strict: bool) -> None:
    """
    Let ``Queue.put`` raise the error of an object that cannot be pickled, instead of printing it.

    It is about the queues of ``mp_all``, which pickle in ``put``; with the standard library's, the error comes in a
    thread. ``MP_STRICT_PUT=1`` in the environment turns it on from the start.

    Parameters
    ----------
    strict : bool
        True to raise, False to print the traceback and drop the object, as ``multiprocessing`` does.

    Examples
    --------
    >>> mp.set_strict_put(True)
    >>> mp.set_strict_put(False)
    """
    global _strict
    _strict = bool(strict)


class _RingLock:
    """One of the two locks of a queue, which the queue itself does not use."""

    def __init__(self, end: Any, writes: bool) -> None:
        self._end, self._writes = end, writes

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        return self._end._acquire(self._writes, timeout if block else 0)  # type: ignore[no-any-return]

    def release(self) -> None:
        if not self._end._release(self._writes):
            raise ValueError("semaphore or lock released too many times")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _RingLocks:
    """Has the attributes `_rlock` and `_wlock` of a queue."""

    _reader: Any

    @property
    def _rlock(self) -> Any:
        return _RingLock(self._reader, False)

    @property
    def _wlock(self) -> Any:
        return _RingLock(self._reader, True)


class SimpleQueue(_RingLocks, queues.SimpleQueue):  # type: ignore[type-arg]
    """A `multiprocessing.SimpleQueue` over a channel."""

    def __init__(self, ends: tuple[Any, Any]) -> None:
        # The standard initialiser would make a pipe and the locks.
        self.__setstate__(ends)

    def __getstate__(self) -> Any:
        assert_travels(self)
        return self._reader, self._writer

    def __setstate__(self, ends: Any) -> None:
        self._reader, self._writer = ends
        self._poll = self._reader.poll

    def put(self, obj: Any) -> None:
        self._writer.send(obj)

    def get(self) -> Any:
        return self._reader.recv()

    def aput(self, obj: Any) -> Coroutine[Any, Any, None]:
        """Put an object, in a coroutine; as `put`."""
        return self._writer.asend(obj)  # type: ignore[no-any-return]

    def aget(self) -> Coroutine[Any, Any, Any]:
        """Get an object, in a coroutine; as `get`."""
        return self._reader.arecv()  # type: ignore[no-any-return]


class Queue(_RingLocks, _Base):  # type: ignore[misc]
    """A `multiprocessing.Queue` over a channel; see Note [Queues without locks and threads of their own]."""

    _reader: Any
    _writer: Any

    def __init__(self, ends: tuple[Any, Any], maxsize: int = 0) -> None:
        # The standard initialiser would make a pipe and the locks.
        maxsize = operator.index(maxsize)
        self._maxsize = maxsize if maxsize > 0 else _MOST
        self._reader, self._writer = ends
        self._writer._set_bound(max(maxsize, 0))
        self._opid = os.getpid()
        if recorders:
            recorders[0].made(self._reader, maxsize)
        self._ignore_epipe = False
        self._reset()
        util.register_after_fork(self, _Base._after_fork)

    def __getstate__(self) -> Any:
        assert_travels(self)
        return self._ignore_epipe, self._maxsize, self._reader, self._writer, self._opid

    def __setstate__(self, state: Any) -> None:
        self._ignore_epipe, self._maxsize, self._reader, self._writer, self._opid = state
        self._reset()

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)
        # To enter a condition takes longer than to enter its lock. It is reentrant, because a signal handler may put.
        self._lock = threading.RLock()
        self._notempty = threading.Condition(self._lock)
        self._putters: dict[Any, Any] = {}  # by event loop, see coroutines.py
        self._feeding = [False]  # True while the feeder thread has a message
        self._has_put = False
        self._feed: _Feeder | None = None

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        self._check_open()
        if not block:
            timeout = 0
        if recorders:
            timeout = recorders[0].waits_for_place(self, timeout)
        deadline = math.fsum((time.monotonic(), timeout)) if timeout else timeout  # it may be a Decimal
        # No `try` around what sends: an exception of a signal handler comes after the message has been sent.
        if not (self._buffer or self._feeding[0]):
            self._has_put = True
            message = self._writer._offer(obj, timeout)
            if message is SENT:
                return
        elif self._writer._wait_for_place(timeout, None):
            try:
                message = self._writer._pickle(obj)
            except BaseException as error:
                self._not_pickled(error, obj)
                return
        else:
            message = None
        while message is None or not self._send_or_feed(message, obj):
            left = max(0.0, deadline - time.monotonic()) if deadline else deadline
            # There may be a place that a stopped process keeps from being taken.
            if message is None or left == 0 or not self._writer._wait_for_place(left, None):
                raise Full

    def aput(self, obj: Any, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """Put an object, in a coroutine; as `put`: `queue.Full` if there is no place within *timeout* seconds."""
        coroutines = imports.load("mp_core.channels.coroutines")
        puts = coroutines.put(self, obj)
        return puts if timeout is None else coroutines.within(timeout, Full, puts)  # type: ignore[no-any-return]

    def aget(self, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
        """Get an object, in a coroutine; as `get`: `queue.Empty` if there is none within *timeout* seconds."""
        coroutines = imports.load("mp_core.channels.coroutines")
        gets = coroutines.receive(self._reader, self)
        return gets if timeout is None else coroutines.within(timeout, Empty, gets)  # type: ignore[no-any-return]

    def _not_pickled(self, error: BaseException, obj: Any) -> None:
        try:
            raise error
        except Exception:  # which the standard method prints
            if not is_of_handler(error):
                imports.load("mp_core.messages.unpicklable").note(error, "put(obj)", obj=obj)
            if _strict or is_of_handler(error):
                raise
            error.add_note(f"the put is at {user_line()}; mp_all.set_strict_put(True) raises the error there")
            self._on_queue_feeder_error(error, obj)
        finally:
            del error  # see Note [Exceptions in frames] in failed_messages.py

    def _send_or_feed(self, message: Any, obj: Any) -> bool:
        """Send a message, leave it to the thread, or report its error; return False if the queue is full."""
        with self._lock:
            self._has_put = True
            if message.error is None and not self._buffer and not self._feeding[0]:
                offered = self._writer._offer_message(message)
                if offered is None or offered is SENT:
                    return offered is SENT
            if message.error is None:
                if self._thread is None:
                    self._start_thread()
                if not self._writer._reserve(message, self._buffer.append):
                    return False
                self._notempty.notify()
                return True
        if message.data is None:
            self._not_pickled(message.take_error(), obj)
        else:
            self._failed(message.take_error(), obj)
        return True

    def _failed(self, error: Exception, obj: Any) -> None:
        if self._ignore_epipe and _is_refused(error):
            return
        self._check_open()
        try:
            raise error
        except Exception:  # which the standard method prints
            self._on_queue_feeder_error(error, obj)
        finally:
            del error  # see Note [Exceptions in frames] in failed_messages.py

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._check_open()
        if timeout is None and block:
            wait: float | None = _LONG_WAIT_S
            while (obj := self._reader._recv_within(wait, _EXPIRED)) is _EXPIRED:
                wait = self._warn_if_abandoned()
            return obj
        obj = self._reader._recv_within(timeout if block else 0, _EXPIRED)
        if obj is _EXPIRED:
            raise Empty
        return obj

    _look_again = 0.0  # when to look for other processes again: all files of all of them are read

    def _warn_if_abandoned(self) -> float | None:
        """
        Warn of a wait that nothing can end: multiprocessing has no other word for it. Return after how many seconds to
        look once more, None if that is done.
        """
        parts, began = self._reader._parts(), time.monotonic()
        if threading.active_count() > 1 or parts is None:
            return None
        if began < self._look_again:
            return self._look_again - began
        likely = [os.getppid(), *(child.pid for child in list(process._children))]  # type: ignore[attr-defined]
        channel_list = imports.load("mp_core.channels.channel_list")
        is_only_here = channel_list.is_only_here(parts[1], likely, lambda: not self.qsize())
        now = time.monotonic()
        self._look_again = now + 100 * (now - began)  # it takes at most a hundredth of a processor
        if is_only_here and process.active_children():  # one that is starting opens the queue after its imports
            return _LONG_WAIT_S
        if is_only_here and not self.qsize():  # the last message may have come before the look
            warn_user(
                f"abandoned queue {id(self)}",
                "get() waits for ever: no other process has this queue open, so all that could put have ended. Let "
                "them put a last object that says so, or give get() a timeout",
                RuntimeWarning,
            )
        return None

    def qsize(self) -> int:
        return self._writer._messages()  # type: ignore[no-any-return]

    @property
    def _sem(self) -> Any:
        return imports.load("mp_core.system.semaphore_views").Count(self._free_places)

    def _free_places(self) -> int:
        return max(0, self._maxsize - self.qsize())

    def full(self) -> bool:
        return not self._free_places()

    def close(self) -> None:
        self._closed = True  # a put that waits in another thread sees why its message cannot be sent
        self._finish_start()
        if self._has_put and self._thread is None:
            # The feeder thread of a standard queue closes both ends after the last message.
            self._reader.close()
            self._writer.close()
        super().close()

    def cancel_join_thread(self) -> None:
        self._finish_start()
        super().cancel_join_thread()

    def _finish_start(self) -> None:
        """Finish a start of the thread that a signal handler has cut off."""
        feed = self._feed
        if feed is not None and feed.pid == os.getpid() and not feed.begun.is_set():
            with suppress(RuntimeError):  # the system has no thread left
                self._start_thread()

    def _start_thread(self) -> None:
        """
        Start the thread; if a signal handler has raised meanwhile, the next call goes on.

        A handler that raises in `Thread.start` would leave a lock that the new thread waits for. Handlers run in the
        main thread only, so another thread starts it.
        """
        feed = self._feed
        if feed is None or feed.pid != os.getpid():
            feed = self._feed = _Feeder(self._buffer, self._notempty, self._feeding, self._writer, self._reader)
            feed.ignore_epipe, feed.on_error = self._ignore_epipe, self._on_queue_feeder_error
        if threading.current_thread() is threading.main_thread():
            try:
                start_new_thread(feed.start, (self,))
            except RuntimeError as refusal:
                if is_of_handler(refusal):
                    raise
                feed.start(self)  # the system may have room for one thread, and not for two
        else:
            feed.start(self)
        feed.begun.wait()
        error, feed.error = feed.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error, feed  # see Note [Exceptions in frames] in failed_messages.py

    def _finish_with_thread(self, feed: _Feeder, thread: threading.Thread) -> None:
        """Have the end of the queue, and of the process, wait for the thread."""
        self._thread = thread
        if not self._joincancelled:
            self._jointhread = util.Finalize(
                self._thread, _Base._finalize_join, [weakref.ref(self._thread)], exitpriority=-5
            )
        self._close = util.Finalize(self, _Base._finalize_close, [self._buffer, self._notempty], exitpriority=10)
        # After that of the join, which may have been cancelled; all threads stop at the same time.
        util.Finalize(self._thread, feed.stop, [weakref.ref(self._thread)], exitpriority=-9)
        util.Finalize(self._thread, feed.abandon, [weakref.ref(self._thread)], exitpriority=-10)


def _is_refused(error: Exception) -> bool:
    """Return whether a message was not sent because no process can read it."""
    return getattr(error, "errno", 0) == errno.EPIPE


class _Feeder:
    """The thread of a queue that sends the pickles for which there was no room."""

    #: How long the end of a process waits for the thread, which looks four times a second whether it shall stop.
    STOP_WITHIN_S = 1

    ignore_epipe = False
    on_error: Any = None
    abandoned = False

    def __init__(self, buffer: deque[Any], notempty: Any, feeding: list[bool], writer: Any, reader: Any) -> None:
        self.buffer, self.notempty, self.feeding = buffer, notempty, feeding
        self.writer, self.reader = writer, reader
        self.error: BaseException | None = None
        self.pid = os.getpid()
        from mp_core.system.waits import Gate  # few queues have a thread

        # Of who starts the thread, of the thread, and of who waits for both.
        self._claim, self._ready, self.begun = allocate_lock(), allocate_lock(), Gate()
        self._ready.acquire()

    def start(self, queue: Queue) -> None:
        """Start the thread of the queue, unless that has been done, and open the gate."""
        if not self._claim.acquire(False):
            return
        try:
            thread = threading.Thread(target=self.run, name="QueueFeederThread", daemon=True)
            thread.start()
            self._ready.acquire()
            queue._finish_with_thread(self, thread)
        except BaseException as error:  # the system has no thread left
            self.error = error
            queue._feed = None
        self.begun.set()

    def run(self) -> None:
        try:
            try:
                self.writer._begin_reservations()
            finally:
                self._ready.release()
            try:
                self._run()
            finally:
                self.writer._end_reservations()
        finally:
            self.on_error = None  # it may refer to the queue, and a finalizer refers to this object

    def _run(self) -> None:
        while True:
            with self.notempty:
                self.feeding[0] = False
                while not self.buffer:
                    self.notempty.wait()
                self.feeding[0] = True
                data = self.buffer.popleft()
            if data is _SENTINEL:
                self.reader.close()
                self.writer.close()
                return
            try:
                self.writer._send_reserved(data)
            except Exception as error:
                if self.abandoned:
                    return  # a connection that was closed meanwhile has not sent it
                if util.is_exiting():
                    return
                self.writer._unreserve()
                if self.ignore_epipe and _is_refused(error):
                    continue  # no process reads the later messages either; their memory is freed as well
                self.on_error(error, bytes(data.data))
            finally:
                del data  # one that was not sent frees its memory

    def stop(self, thread: weakref.ref[threading.Thread]) -> None:
        """
        Let the thread stop, because the process ends, if it waits for room.

        A message that it has sent belongs to its reader. So the thread itself finds out: its wait for room ends with an
        error as soon as the connection is closed, and a send that has begun without a wait is finished.
        """
        sender = thread()
        if sender is not None and sender.is_alive():
            self.abandoned = True
            self.writer._close()

    def abandon(self, thread: weakref.ref[threading.Thread]) -> None:
        """Free the memory of the messages that the process leaves unsent."""
        sender = thread()
        if sender is not None and sender.is_alive():
            sender.join(self.STOP_WITHIN_S)
        self.buffer.clear()


class JoinableQueue(Queue, queues.JoinableQueue):  # type: ignore[type-arg]
    """A `multiprocessing.JoinableQueue` over a channel."""

    @property
    def _unfinished_tasks(self) -> Any:
        return imports.load("mp_core.system.semaphore_views").Count(self._writer._tasks)

    @property
    def _cond(self) -> Any:
        return imports.load("mp_core.system.semaphore_views").Awaited(self._writer._join)

    def task_done(self) -> None:
        if not self._writer._task_done():
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        self._writer._join(None)


declare_one_receiver(SimpleQueue, Queue, descriptors=True)
