"""The coroutines of queues, connections and processes; their first call imports this module, and asyncio.

Note [Waiting in an event loop]
-------------------------------
A coroutine does by itself what can be done at once, in the thread of its loop. Otherwise it waits with the others that
wait for the same object in the same loop, first come, first served:

    waits for         told by                                           then the coroutine
    a message         `add_reader` on the pipe of the connection        takes it
    room in a ring    a thread that sends the messages of these waiters finds that its message is sent
    a place           a thread that puts the objects of these waiters   finds that its object is put
    a child's end     `add_reader` on a descriptor of the process       joins it

A coroutine takes a message and returns without an `await` in between. So the task that is cancelled while it waits has
taken nothing, and one that has taken a message returns it.

Nothing tells an event loop of room in a ring or of a place in a bounded queue: for both there is a word of shared
memory, on which the kernel lets a thread sleep. One thread waits for all coroutines of a loop and an object,
and ends a second after the last.

Note [A message of more than 64 KiB]
------------------------------------
It passes through the ring in parts, and its reader waits for the writer. A thread takes it, and keeps it in the
connection, as the next message of any receiver in this process: so it is not lost if the waiting tasks are cancelled
meanwhile.

Note [A loop that has much to receive]
--------------------------------------
A coroutine that need not wait does not let the loop go on. If the loop's turn has taken a millisecond, the coroutine
lets it go on before it takes its message.
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from queue import Full
from typing import Any, NoReturn

from mp_core.sharing import backend, by_value, forks
from mp_core.system.descriptor import readable
from mp_core.system.weak_sets import members

#: Seconds that a turn of a loop may take before a coroutine that need not wait ends it.
TURN_S = 0.001
#: Seconds after which a thread that waits for a place looks whether it is still wanted, and that it stays idle.
LOOK_S, IDLE_S = 0.25, 1.0
#: How often a descriptor may be readable without a message before it is left alone, and for how long then.
IN_VAIN, PAUSE_S = 16, 0.01

_EXPIRED, _LARGE = object(), object()


class _Turn:
    """The turn of a loop: when the first coroutine in it has asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._began: float | None = None

    def is_long(self) -> bool:
        if self._began is not None:
            return time.monotonic() - self._began > TURN_S
        self._began = time.monotonic()
        loop = self._loop()
        if loop is not None:
            loop.call_soon(self._end)
        return False

    def _end(self) -> None:
        self._began = None


async def within(timeout: float, too_late: type[Exception], waits: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine, and raise *too_late* if it still waits after *timeout* seconds."""
    try:
        async with asyncio.timeout(max(timeout, 0)) as limit:
            return await waits
    except TimeoutError:
        if limit.expired():
            raise too_late from None
        raise


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = weakref.WeakKeyDictionary()


class _Waiters:
    """The coroutines of one loop that wait for one object."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn = _turns.get(loop) or _turns.setdefault(loop, _Turn(loop))
        self.waiting: deque[asyncio.Future[None]] = deque()

    def call(self, function: Callable[..., object], *args: Any) -> bool:
        """Call a function in the thread of the loop; return False if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def wake(self) -> asyncio.Future[None] | None:
        """Wake the first coroutine that still waits, and return what it waits for; in a closed loop there is none."""
        while self.waiting and not self.loop.is_closed():
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                return future
        return None


def _waiters_of(known: dict[Any, Any], loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> Any:
    """Return the waiters of a loop, made by *make* if there are none; those of closed loops are forgotten."""
    waiters = known.get(loop)
    if waiters is None:
        for other in [each for each in known if each.is_closed()]:
            del known[other]
        waiters = known.setdefault(loop, make())
    return waiters


# ---- receiving -------------------------------------------------------------------------------------------------------


class _Readers(dict[asyncio.AbstractEventLoop, "_Reader"]):
    """The readers of a connection, by loop; the connection tells them of its end."""

    def closed(self) -> None:
        for reader in list(self.values()):
            reader.call(reader.rouse)


class _Reader(_Waiters):
    """The coroutines of one loop that wait for a message of one connection, which has this object."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.fd = -1  # a duplicate: nobody else closes it, or waits for it in this loop
        self.paused = False  # the descriptor is not watched, although somebody waits
        self.woken: asyncio.Future[None] | None = None  # who has been woken and has not looked yet
        self.in_vain = 0
        self.error: BaseException | None = None
        _readers.add(self)

    async def next(self, connection: Any) -> Any:
        """Wait for a message, behind those that came before."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.waiting.append(future)
        try:
            while True:
                self.watch(connection._handle)
                await future
                self.woken = None
                found = self.look(connection)
                if found is not _EXPIRED:
                    break
                future = self.loop.create_future()
                self.waiting.appendleft(future)
        except BaseException:
            if future in self.waiting:
                self.waiting.remove(future)
            else:  # what this one has not taken is the next one's, which also has to hear of an end
                self.woken = None
                self.rouse()
            raise
        finally:
            if not self.waiting:
                self.rest_soon()
        return found

    def look(self, connection: Any) -> Any:
        """Take a message that is there; or return `_EXPIRED`, and the caller has to wait."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # see Note [Exceptions in frames] in failed_messages.py
        found = connection._take(_EXPIRED, _LARGE)
        if found is _LARGE:
            self.keep_next(connection)
            return _EXPIRED
        if found is _EXPIRED and self.fd >= 0 and readable(self.fd, 0):
            self.in_vain += 1
        else:
            self.in_vain = 0
        return found

    def watch(self, handle: int | None) -> None:
        """Let the loop wait for the descriptor of the connection."""
        if self.fd >= 0 or self.paused:
            return
        if handle is None:  # closed: the first waiter finds that out
            self.loop.call_soon(self.rouse)
            return
        self.fd = os.dup(handle)
        self.loop.add_reader(self.fd, self.readable)

    def readable(self) -> None:
        if not self.waiting and self.woken is None:
            self.rest()
        elif self.in_vain >= IN_VAIN:
            # Another process is stopped in the middle of receiving, or the program has written into the pipe.
            self.in_vain = 0
            self.pause()
            self.loop.call_later(PAUSE_S, self.resume)
        else:
            self.rouse()

    def rouse(self) -> None:
        """Let the first waiter look."""
        if self.woken is None:
            self.woken = self.wake()

    def pause(self) -> None:
        self.paused = True
        self.rest()

    def resume(self) -> None:
        self.paused = False
        self.rouse()  # and who finds no message lets the descriptor be watched

    def rest_soon(self) -> None:
        """Leave the descriptor alone after this turn, unless somebody waits again by then."""
        if self.fd >= 0 and not self.loop.is_closed():
            self.loop.call_soon(self.rest_if_idle)
        else:
            self.rest()

    def rest_if_idle(self) -> None:
        if not self.waiting and self.woken is None:
            self.rest()

    def rest(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(fd)
            os.close(fd)

    def keep_next(self, connection: Any) -> None:
        """Let a thread take the next message, see Note [A message of more than 64 KiB]."""
        if not self.paused:
            self.pause()
            threading.Thread(
                target=self._keep_next, args=(connection,), name="mp_core large message", daemon=True
            ).start()

    def _keep_next(self, connection: Any) -> None:
        try:
            connection._keep_next()
        except (EOFError, OSError):
            pass  # the next waiter finds the same
        except BaseException as error:
            self.error = error
        self.call(self.resume)

    def forget(self) -> None:
        """Close the descriptor in the child of a fork, which has another loop."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.forget()  # of a loop that was closed in the middle


_readers: weakref.WeakSet[_Reader] = weakref.WeakSet()


def _forget_all() -> None:
    for reader in members(_readers):
        reader.forget()


forks.register(after_in_child=_forget_all)


async def receive(connection: Any, queue: Any = None) -> Any:
    """Receive an object, perhaps for a *queue*."""
    if queue is not None:
        queue._check_open()
    loop = asyncio.get_running_loop()
    readers = connection._awaited
    if readers is None:
        readers = connection.__dict__.setdefault("_awaited", _Readers())
    reader = readers.get(loop)
    if reader is None:
        if not _has_ring(connection):
            return connection.recv()
        reader = _waiters_of(readers, loop, lambda: _Reader(loop))
    if reader.turn.is_long():
        await asyncio.sleep(0)
    if not reader.waiting and reader.woken is None and not reader.paused:
        found = reader.look(connection)
        if found is not _EXPIRED:
            return found
    return await reader.next(connection)


def _has_ring(connection: Any) -> bool:
    """Return False for a connection that waits for nothing, as its other end is closed; raise if it has no ring."""
    connection._check_closed()
    if connection._has_ring():
        return True
    poll = select.poll()
    poll.register(connection.fileno(), 0)
    if not poll.poll(0):
        refuse("connection")
    return False


def refuse(what: str) -> NoReturn:
    """Raise the error of a connection or queue for which an event loop cannot wait."""
    raise OSError(
        f"this {what} is an ordinary one, without a ring, for want of descriptors or memory: raise the limit "
        "(ulimit -n), or use the method that waits in a thread (asyncio.to_thread)"
    )


# ---- threads that wait for coroutines --------------------------------------------------------------------------------


class _Helper(_Waiters):
    """Waiters with a thread, which works while there is work, and ends when there has been none for a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def has_work(self) -> bool:
        raise NotImplementedError

    def work(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        """Have a thread; call it with the condition, after there is work."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name=f"mp_core {type(self).__name__}", daemon=True)
            self.thread.start()
        else:
            self.changed.notify()

    def _run(self) -> None:
        while True:
            with self.changed:
                if not self.changed.wait_for(self.has_work, IDLE_S):
                    self.thread = None
                    self.leave()
                    return
            self.work()

    def leave(self) -> None:
        """Do what the thread does last, with the condition."""


# ---- sending ---------------------------------------------------------------------------------------------------------


class _Outgoing:
    """A message that has to wait for room, or an object that has to wait for a place."""

    def __init__(self, send: Callable[[Any, list[bool]], bool], data: Any, done: asyncio.Future[bool]) -> None:
        self.send, self.data, self.done = send, data, done
        self.stop: list[bool] = []  # not empty: its sender is cancelled

    def finish(self, sent: bool, error: BaseException | None) -> None:
        if error is None:
            self.done.set_result(sent)
        else:
            self.done.set_exception(error)


class _Sender(_Helper):
    """The messages of one loop that wait for room in one connection, or for a place in one queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.outgoing: deque[_Outgoing] = deque()
        self.sending = 0  # messages that are not sent yet

    def has_work(self) -> bool:
        return bool(self.outgoing)

    def work(self) -> None:
        out, sent, error = self.outgoing.popleft(), False, None
        try:
            sent = out.send(out.data, out.stop)
        except BaseException as raised:
            error = raised
        out.data = None  # one that was not sent frees its memory
        self.call(self._finish, out, sent, error)

    def _finish(self, out: _Outgoing, sent: bool, error: BaseException | None) -> None:
        self.sending -= 1
        out.finish(sent, error)

    async def send(self, connection: Any, send: Callable[[Any, list[bool]], bool], data: Any) -> None:
        """
        Have the thread call *send*, which returns False if it gave up since its list is no longer empty.

        If the task is cancelled, that is raised if and only if the message was not sent.
        """
        out = _Outgoing(send, data, self.loop.create_future())
        self.sending += 1
        with self.changed:
            self.outgoing.append(out)
            self.begin()
        cancelled: asyncio.CancelledError | None = None
        while not out.done.done():
            try:
                await asyncio.wait((out.done,))
            except asyncio.CancelledError as error:
                cancelled = error
                out.stop.append(True)
                connection._wake_senders()
            except GeneratorExit:  # the loop has ended
                out.stop.append(True)
                connection._wake_senders()
                raise
        try:
            if cancelled is not None and (out.done.exception() is not None or not out.done.result()):
                raise cancelled
            out.done.result()
        finally:
            del cancelled, out  # see Note [Exceptions in frames] in failed_messages.py


async def send(connection: Any, obj: Any) -> None:
    """Send an object."""
    loop = asyncio.get_running_loop()
    senders = connection._senders
    if senders is None:
        senders = connection.__dict__.setdefault("_senders", {})
    sender = senders.get(loop)
    if sender is None:
        if not _has_ring(connection):
            connection.send(obj)
            return
        connection._check_writable()
        sender = _waiters_of(senders, loop, lambda: _Sender(loop))
    if connection._mp_shares is None:
        by_value.find_out(connection)
    if sender.turn.is_long():
        await asyncio.sleep(0)
    if sender.sending:
        await sender.send(connection, connection._send_unless, connection._pickle(obj))
        return
    message = connection._offer(obj, 0)
    if message.error is not None:
        raise message.take_error()
    if message is not backend.SENT:
        await sender.send(connection, connection._send_unless, message)


# ---- putting ---------------------------------------------------------------------------------------------------------


def _put_unless(loop: asyncio.AbstractEventLoop, queue: Any, obj: Any, stop: list[bool]) -> bool:
    """Put an object when the queue has a place; return False if *stop* is no longer empty, or the loop is closed."""
    while not stop and not loop.is_closed():
        try:
            if queue._writer._wait_for_place(LOOK_S, stop) and not stop:
                queue.put(obj, False)
                return True
        except Full:
            pass  # another process was faster
        except OSError:  # an end is closed
            queue._check_open()
            raise
        queue._check_open()
    return False


async def put(queue: Any, obj: Any) -> None:
    """Put an object into a `Queue`."""
    queue._check_open()
    loop = asyncio.get_running_loop()
    putter = queue._putters.get(loop) or _waiters_of(queue._putters, loop, lambda: _Sender(loop))
    if putter.turn.is_long():
        await asyncio.sleep(0)
    if not putter.sending:
        try:
            queue.put(obj, False)
            return
        except Full:
            pass
    await putter.send(queue._writer, functools.partial(_put_unless, loop, queue), obj)


# ---- processes -------------------------------------------------------------------------------------------------------


async def join_process(process: Any, timeout: float | None = None) -> None:
    """Wait until a child has ended, as its `join` does."""
    process.join(0)  # the errors of a process that cannot be joined
    if process.exitcode is not None:
        process.join()
        return
    fd = _end_of(process)
    try:
        if process.exitcode is None:  # or another thread may have joined it, and the descriptor is of another process
            await wait_readable(fd, timeout)
    finally:
        os.close(fd)
    if process.exitcode is not None:
        process.join()


def _end_of(process: Any) -> int:
    """Return a descriptor of its own that becomes readable when a child has ended."""
    popen = process._popen
    # The sentinel of a forked child stays open in what the child forks.
    if getattr(popen, "method", None) in ("fork", "spawn") and hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(popen.pid)
        except OSError:
            pass  # no pidfds here
    return os.dup(process.sentinel)


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_readable(fd: int, timeout: float | None) -> bool:
    """Wait until a descriptor that nobody else waits for in this loop is readable; return False after *timeout* s."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _set_result, readable)
    try:
        done, _ = await asyncio.wait((readable,), timeout=None if timeout is None else max(0.0, timeout))
    finally:
        loop.remove_reader(fd)
    return bool(done)
