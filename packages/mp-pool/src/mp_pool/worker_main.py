"""Inside a worker process: read tasks one at a time, and send each result before beginning the next task."""

from __future__ import annotations

import array
import mmap
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler

from mp_core import children
from mp_core.native import Journal
from mp_pool import _function_cache, wire
from mp_pool._memory import private_bytes
from mp_pool._patience import Patience
from mp_pool.wire import ALONE, BATCH, FORGET, FUNCTION, HEADER, JOURNAL, PACKET

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from mp_pool._worker_ends import WorkerEnds

__all__ = ["Settings", "work"]

RUN = 8  # tasks
NAP = 50e-6  # seconds
EXTRA = socket.CMSG_SPACE(4)  # bytes: a packet comes with at most one descriptor


class Settings:
    """
    The settings that a worker is given when it starts.

    *executor*: as in concurrent.futures, SystemExit and the like are results, and errors of the initializer are logged.
    *environment* is set also before the worker imports anything, see `_environment`. *forked*: whether workers are
    forked. *initializer_comes*: whether the initializer comes through the socket.
    """

    def __init__(
        self,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks: int | None = None,
        max_memory: int | None = None,
        executor: bool = False,
        environment: dict[str, str] | None = None,
        forked: bool = False,
        initializer_comes: bool = False,
    ) -> None:
        self.initializer = initializer
        self.initargs = initargs
        self.max_tasks = max_tasks
        self.max_memory = max_memory
        self.executor = executor
        self.environment = environment
        self.forked = forked
        self.initializer_comes = initializer_comes

    def without_initializer(self) -> Settings:
        """Return settings for a worker whose initializer comes through the socket."""
        made = Settings()
        vars(made).update(vars(self), initializer=None, initargs=(), initializer_comes=True)
        return made


def _ignored(number: int, frame: object) -> None:
    """Ignore Ctrl-C, which the terminal sends to every process: the parent decides whether to end the workers."""


def work(ends: WorkerEnds, settings: Settings) -> None:
    """
    Run tasks until the parent asks for the end or has ended itself.
    """
    # A handler instead of SIG_IGN, which programs started by a task would inherit.
    if threading.current_thread() is threading.main_thread():
        if signal.signal(signal.SIGINT, _ignored) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        else:
            signal.set_wakeup_fd(-1)  # a forked worker must not wake the parent's event loop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if settings.environment:
        os.environ.update(settings.environment)
    try:
        # With its kind, which it would have to ask the kernel for.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, os.dup(ends.tasks)) as source:
            if not _initialize(settings, source, ends.results):
                return
            _send(ends.results, 0, wire.READY, b"")
            _loop(source, ends.results, settings)
    except BrokenPipeError:
        util.debug("worker: the pool's process has ended")
    finally:
        # Tells the parent that this process takes no more tasks, even if it takes long to end.
        ends.close()


def _initialize(settings: Settings, source: socket.socket, out: int) -> bool:
    if settings.initializer_comes or settings.initializer is not None:
        children.get_ready()  # it may change the root of the process
    try:
        if settings.initializer_comes:
            _receive_function(source, out)()
        elif settings.initializer is not None:
            settings.initializer(*settings.initargs)
    except BaseException as error:
        if not settings.executor and not isinstance(error, Exception):
            raise
        if settings.executor:
            from concurrent.futures._base import LOGGER

            LOGGER.critical("Exception in initializer:", exc_info=True)
        _send(out, 0, wire.INIT_FAILED, wire.dump_error(error))
        return False
    return True


def _receive_function(source: socket.socket, out: int) -> Callable[..., object]:
    buffer = bytearray(PACKET)
    size, extra, _, _ = source.recvmsg_into([buffer], EXTRA)
    if size == 0:
        raise BrokenPipeError
    number, _, kind = HEADER.unpack_from(buffer)
    _keep(number, kind, memoryview(buffer)[HEADER.size : size], extra, out)
    try:
        return _function_cache.referred(number)
    finally:
        _function_cache.forget(number)


def _loop(source: socket.socket, out: int, settings: Settings) -> None:
    # Few packets are long, and only pages that one has filled are resident.
    buffer = mmap.mmap(-1, PACKET, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(buffer)
    done = 0
    caught = BaseException if settings.executor else Exception
    unpack, first = HEADER.unpack_from, HEADER.size
    loads, loads_plain = ForkingPickler.loads, pickle.loads
    journal: Any = None
    value: Any
    payload: Any
    run = 0  # tasks since this process last waited
    alone = False  # whether no worker had another task than this one's last
    buffers = [buffer]
    patience = Patience(source.fileno())
    is_ready = False  # for anything that a task may need
    while True:
        try:
            size, extra, _, _ = source.recvmsg_into(buffers, EXTRA, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if run >= RUN:
                # Tasks follow each other closely, and this process is faster than the parent sends. If it slept in a
                # read, each send would have to wake it.
                time.sleep(NAP)
            else:
                # Not in a read: a process that is killed there may take the packet with it, which it has not begun.
                if done and not is_ready:
                    is_ready = True
                    _get_ready()
                patience.wait(alone)
            run = 0
            continue
        if size == 0:
            return
        run += 1
        number, length, kind = unpack(buffer)
        payload = view[first:size]
        if length != size - first:
            payload = _rest(source.fileno(), payload, length)
        if kind == BATCH:
            count, ends = _run_batch(journal, number, payload, out, settings, done)
            run, done = RUN, done + count
            if ends or _has_to_end(settings, done):
                return
            continue
        if kind == JOURNAL:
            journal = _open_journal(extra, out) or journal
            continue
        if wire.RICH < kind < ALONE:
            _keep(number, kind, payload, extra, out)
            continue
        if number == 0:
            return
        alone = kind >= ALONE
        # One write of a result before the next read of a task: at a death the parent knows which task was running.
        try:
            function, args, kwds = loads(payload) if kind & wire.RICH else loads_plain(payload)
            payload = None
            value = function(*args, **kwds) if kwds else function(*args)
        except caught as error:
            kind, data = wire.FAILED, wire.dump_error(error)
        else:
            kind, data = _dumped(value, settings)
        # These objects must not live until the next task comes.
        function = args = kwds = value = payload = None
        _send(out, number, kind, data)
        del data
        done += 1
        if _has_to_end(settings, done):
            return


def _get_ready() -> None:
    """
    Import what tasks and results may need: after a result and not before, so that the first does not wait for it.
    """
    try:
        children.get_ready()
    except (ImportError, OSError):
        pass  # a task has changed the root or left no descriptor; a message that needs more says so


def _has_to_end(settings: Settings, done: int) -> bool:
    if done == settings.max_tasks or (settings.max_memory is not None and private_bytes() > settings.max_memory):
        # The parent takes back the tasks that it has sent meanwhile.
        util.debug("worker: ends after %d tasks", done)
        return True
    return False


def _dumped(value: Any, settings: Settings) -> tuple[int, Any]:
    caught = BaseException if settings.executor else Exception
    try:
        return wire.dump_result(value)
    except caught as error:
        return wire.FAILED, wire.dump_error(error if settings.executor else _unsent(error, value))


def _open_journal(extra: list[Any], out: int) -> Any:
    """
    Map the memory of the journal that the parent has sent; return None if this is not possible, and tell nothing.
    """
    fds = _descriptors(extra)
    if not fds:
        return None  # too many are open
    try:
        import mmap  # few workers have a journal

        journal = Journal(mmap.mmap(fds[0], 0))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fds[0])
    _send(out, 0, wire.JOURNAL_READY, b"")
    return journal


def _run_batch(journal: Any, batch: int, payload: Any, out: int, settings: Settings, done: int) -> tuple[int, bool]:
    """
    Run the tasks of a batch until one is taken back, and tell the parent; return how many have run, and whether the
    worker has to end.
    """
    caught = BaseException if settings.executor else Exception
    numbers, pickles, calls = pickle.loads(payload)
    functions = [_loaded(data, caught) for data in pickles]
    begin, append = journal.begin, journal.done
    count, ends = 0, False
    for index, args in calls:
        if not begin(batch, count):
            break
        try:
            value = functions[index](*args)
        except caught as error:
            kind, data = wire.FAILED, wire.dump_error(error)
        else:
            kind, data = _dumped(value, settings)
        if kind != wire.PLAIN or not append(data):
            _send(out, numbers[count], kind, data)
            append(None)
        del data
        value = None
        count += 1
        if settings.max_memory is not None and (ends := _has_to_end(settings, done + count)):
            break  # memory is not looked at again: it may be less now
    _send(out, 0, wire.BATCH_END, b"")
    return count, ends


def _loaded(data: bytes, caught: type[BaseException]) -> Callable[..., Any]:
    """
    Return the function of a pickle; if there is none here, one that raises the error in each of its tasks.
    """
    try:
        function: Callable[..., Any] = pickle.loads(data)
    except caught as error:
        reason = error

        def fail(*args: Any) -> NoReturn:
            raise reason

        return fail
    return function


def _descriptors(extra: list[Any]) -> array.array[int]:
    fds = array.array("i")
    for _, _, data in extra:
        fds.frombytes(data)
    return fds


def _keep(number: int, kind: int, payload: Any, extra: list[Any], out: int) -> None:
    """
    Take a function for later tasks, with the descriptor of its memory file if it has one, or forget it.
    """
    fds = _descriptors(extra)
    if kind & ~wire.RICH == FUNCTION:
        _function_cache.hold(number, payload, fds[0] if fds else -1)
        if kind & wire.RICH:
            _send(out, 0, wire.HAS_FUNCTION, b"")
    elif kind == FORGET:
        _function_cache.forget(number)


def _unsent(error: BaseException, value: Any) -> BaseException:
    try:
        from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
    except OSError:
        return error  # no descriptor is left to import it by
    try:
        return MaybeEncodingError(error, value)  # type: ignore[no-any-return]
    except Exception:
        text = f"an object of {type(value).__qualname__}"  # its repr() fails, too
        return MaybeEncodingError(error, text)  # type: ignore[no-any-return]


def _rest(source: int, begun: memoryview, length: int) -> bytearray:
    """
    Read the rest of a task that is longer than a packet: it comes in several, with nothing in between.
    """
    whole = bytearray(length)
    view = memoryview(whole)
    at = len(begun)
    view[:at] = begun
    while at < length:
        size = os.readv(source, [view[at:]])  # the parent may send more slowly than this reads
        if size == 0:
            raise BrokenPipeError  # the parent died while it sent
        at += size
    return whole


def _send(out: int, number: int, kind: int, data: Any) -> None:
    size = len(data)
    header = HEADER.pack(number, size, kind)
    if size < 4000:
        # Shorter than what a pipe takes at once (PIPE_BUF), so a result arrives whole or not at all.
        os.write(out, header + data if type(data) is bytes else header + bytes(data))
        return
    # A signal may interrupt a long write after any part of it.
    sent = os.writev(out, [header, data])
    while sent < len(header):
        sent += os.write(out, header[sent:])
    view = memoryview(data)
    while sent < len(header) + size:
        sent += os.write(out, view[sent - len(header) :])
