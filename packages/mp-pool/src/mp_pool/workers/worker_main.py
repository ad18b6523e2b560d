"""Inside a worker process: read tasks one at a time, and send each result before beginning the next task."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # those of signal make enumerations
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import util

from mp_core.children import death_pipe, inheritance
from mp_core.children.main_module import sends_definitions
from mp_core.sharing.backend import LONGEST, plain_loads, recorders, timeline_blocks, timeline_now
from mp_pool.tasks import function_cache, task_messages
from mp_pool.tasks.task_messages import BATCH, END, FORGET, FUNCTION, MORE, PART, RICH
from mp_pool.workers.memory import private_bytes
from mp_pool.workers.own_index import set_worker_index
from mp_pool.workers.task_rings import WorkerEnds  # a worker receives one: the fork server has its module by this

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLACE = 1 << 16  # bytes for the stacks of each worker, in a file that has no pages before something is written


class Settings:
    """
    The settings that a worker is given when it starts.

    *executor*: as in concurrent.futures, SystemExit and the like are results, and errors of the initializer are logged.
    *environment* is set also before the worker imports anything, see `environment`. *forked*: whether workers are
    forked. *cpus*: the processors of each worker. *ends_children*: whether what a worker starts ends with it. *seed*:
    of the tasks' random numbers. *in_notebook*: whether the pool is a notebook's. `initializer_comes`: whether the
    initializer comes through the ring.
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
        cpus: Sequence[frozenset[int]] | None = None,
        ends_children: bool = False,
        seed: Any = None,
        in_notebook: bool = False,
    ) -> None:
        self.initializer = initializer
        self.initargs = initargs
        self.max_tasks = max_tasks
        self.max_memory = max_memory
        self.executor = executor
        self.environment = environment
        self.forked = forked
        self.cpus = cpus
        self.ends_children = ends_children
        self.seed = seed
        self.in_notebook = in_notebook
        self.initializer_comes = False

    def without_initializer(self) -> Settings:
        """Return settings for a worker whose initializer comes through the ring."""
        made = Settings()
        vars(made).update(vars(self), initializer=None, initargs=(), initializer_comes=True)
        return made


def _ignored(number: int, frame: object) -> None:
    """Ignore Ctrl-C, which the terminal sends to every process: the parent decides whether to end the workers."""


def work(ends: WorkerEnds, settings: Settings) -> None:
    """Run tasks until the parent asks for the end or has ended itself."""
    # A handler instead of SIG_IGN, which programs started by a task would inherit.
    if threading.current_thread() is threading.main_thread():
        if _signal.signal(signal.SIGINT, _ignored) == signal.SIG_IGN:
            _signal.signal(signal.SIGINT, _signal.SIG_IGN)
        else:
            _signal.set_wakeup_fd(-1)  # a forked worker must not wake the parent's event loop
    if ends.mask is not None:
        _signal.pthread_sigmask(signal.SIG_SETMASK, ends.mask)
    _signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    if settings.environment:
        os.environ.update(settings.environment)
        if settings.forked:
            from mp_pool.workers.environment import limit_loaded_libraries

            limit_loaded_libraries(settings.environment)
    if settings.in_notebook:
        from mp_pool.workers.notebook import print_whole_lines

        print_whole_lines()
    ring = ends.open()
    _write_stacks(ends.stacks, ends.index)
    if ends.stacks >= 0 and not settings.forked:
        os.close(ends.stacks)  # a forked worker has the pool's own number
    set_worker_index(ends.index)
    if settings.ends_children:
        death_pipe.end_children_with_this_process()
    try:
        if _initialize(settings, ring, ends.index):
            ring.send_all(0, task_messages.READY, b"")
            _loop(ring, settings)
    except BrokenPipeError:
        util.debug("worker: the pool's process has ended")
    finally:
        # Tells the parent that this process takes no more tasks, even if it takes long to end.
        ring.close()


def _write_stacks(fd: int, index: int) -> None:
    """
    Have a crash of this worker write its stack at its place in that file, unless the program has enabled faulthandler.
    """
    if fd < 0:
        return
    import faulthandler

    if faulthandler.is_enabled():
        return
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    os.lseek(own, index * PLACE, os.SEEK_SET)
    try:
        faulthandler.enable(own)
    except OSError:  # a sandbox refuses sigaltstack
        os.close(own)


def _initialize(settings: Settings, ring: Any, index: int) -> bool:
    if settings.initializer_comes or settings.initializer is not None:
        inheritance.get_ready()  # it may change the root of the process
    try:
        if settings.cpus is not None:
            os.sched_setaffinity(0, settings.cpus[index])
        if settings.initializer_comes:
            _call(_receive_function(ring))
        elif settings.initializer is not None:
            _call(settings.initializer, *settings.initargs)
    except BaseException as error:
        if not settings.executor and not isinstance(error, Exception):
            raise
        if settings.executor:
            from concurrent.futures._base import LOGGER

            LOGGER.critical("Exception in initializer:", exc_info=True)
        _send(ring, 0, task_messages.INIT_FAILED, task_messages.dump_error(error))
        return False
    return True


def _call(initializer: Callable[..., object], *args: Any) -> None:
    if sends_definitions():
        from mp_core.messages.main_globals import initialize

        initialize(initializer, *args)
    else:
        initializer(*args)


def _receive_function(ring: Any) -> Callable[..., object]:
    parts: list[Any] = []
    while (frame := _next(ring, parts)) is None:
        if not ring.wait():
            raise BrokenPipeError
    number, kind, payload = frame
    _keep(ring, number, kind, payload)
    try:
        return function_cache.referred(number)
    finally:
        function_cache.forget(number)


def _next(ring: Any, parts: list[Any]) -> task_messages.Frame | None:
    """Return the next whole message, None if it is not there yet; *parts* has the beginning of a long one."""
    while (message := ring.take()) is not None:
        if message[1] != PART and not parts:
            return message  # type: ignore[no-any-return]
        for frame in task_messages.assembled([message], parts):
            return frame
        ring.send_all(0, MORE, b"")
    return None


def _loop(ring: Any, settings: Settings) -> None:
    done = 0
    caught = BaseException if settings.executor else Exception
    loads, loads_plain, seed = task_messages.loads, plain_loads, settings.seed
    value: Any
    payload: Any
    call: Any
    parts: list[Any] = []
    is_ready = False  # for anything that a task may need
    has_dropped = False  # tasks that were taken back, since the last answer
    while True:
        frame = _next(ring, parts)
        if frame is None:
            if has_dropped:
                # Their messages may have left no room for others, and there is no result to tell the pool of the end of
                # that.
                has_dropped = False
                ring.send_all(0, MORE, b"")
            if done and not is_ready:
                is_ready = True
                _get_ready()
            if not ring.wait():
                return
            continue
        number, kind, payload = frame
        frame = None
        if kind == BATCH:
            count, ends = _run_batch(ring, number, payload, settings, done)
            has_dropped = count == 0
            done += count
            if ends or _has_to_end(settings, done):
                return
            continue
        if kind == END:
            if payload:
                util.Finalize(None, _end_at_once, exitpriority=-sys.maxsize)
            return
        if kind > RICH:
            _keep(ring, number, kind, payload)
            continue
        has_dropped = not ring.claim(number)
        if has_dropped:
            continue  # the task was taken back, so its references are another's
        began, given, name, came = recorders and timeline_now(), len(payload), "", (0, 0)
        # The result is sent before the next task is claimed: at a death the parent knows which task was running.
        try:
            call = loads(payload) if kind else loads_plain(payload)
            function, args, kwds = call if seed is None else task_messages.seeded(seed, call)
            payload = None
            if began:
                name = task_messages.name_of(function, args)
                came = timeline_blocks()[:2] if kind else came
            value = function(*args, **kwds) if kwds else function(*args)
        except caught as error:
            kind, data = task_messages.FAILED, task_messages.dump_error(error)
        else:
            kind, data = _dumped(ring, value, settings)
        # These objects must not live until the next task comes.
        call = function = args = kwds = value = payload = None
        if began:
            _record(began, name, number, given, kind, data, came)
        _send(ring, number, kind, data)
        del data
        done += 1
        if _has_to_end(settings, done):
            return


def _end_at_once() -> None:
    """End after all finalizers of multiprocessing: the end of the interpreter takes longer than all before it."""
    util._flush_std_streams()  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGTERM)  # as the standard pool does about then: a handler of the program is called


def _get_ready() -> None:
    """Import what tasks and results may need: after a result and not before, so that the first does not wait for it."""
    try:
        inheritance.get_ready()
    except (ImportError, OSError):
        pass  # a task has changed the root or left no descriptor; a message that needs more says so


def _has_to_end(settings: Settings, done: int) -> bool:
    if done == settings.max_tasks or (settings.max_memory is not None and private_bytes() > settings.max_memory):
        # The parent takes back the tasks that it has sent meanwhile.
        util.debug("worker: ends after %d tasks", done)
        return True
    return False


def _dumped(ring: Any, value: Any, settings: Settings) -> tuple[int, Any]:
    caught = BaseException if settings.executor else Exception
    try:
        return task_messages.dump_result(value, ring.dump)
    except caught as error:
        raised = error if settings.executor else task_messages.unsent(error, value)
        return task_messages.FAILED, task_messages.dump_error(raised)


def _run_batch(ring: Any, first: int, payload: Any, settings: Settings, done: int) -> tuple[int, bool]:
    """
    Run the tasks of a batch, which are numbered from *first* on, except those that were taken back; return how many
    ran, and whether the worker has to end.
    """
    caught = BaseException if settings.executor else Exception
    pickles, calls = task_messages.unpacked(payload)
    functions = [_loaded(data, caught) for data in pickles]
    claim, send, count = ring.claim, ring.send_all, 0
    for number, (index, args) in enumerate(calls, first):
        if not claim(number):
            continue
        began = recorders and timeline_now()
        try:
            value = functions[index](*args)
        except caught as error:
            kind, data = task_messages.FAILED, task_messages.dump_error(error)
        else:
            kind, data = _dumped(ring, value, settings)
        value = None
        if began:
            name = task_messages.name_of(functions[index], args)
            _record(began, name, number, len(payload) // len(calls), kind, data)
        if len(data) <= LONGEST:
            send(number, kind, data)
        else:
            _send(ring, number, kind, data)
        del data
        count += 1
        if settings.max_memory is not None and _has_to_end(settings, done + count):
            return count, True  # memory is not looked at again: it may be less now
    return count, False


def _record(
    began: int, name: str, number: int, given: int, kind: int, data: Any, came: tuple[int, int] = (0, 0)
) -> None:
    went = timeline_blocks()[2:] if kind & RICH else (0, 0)
    for recorder in recorders:
        recorder.task(began, name, number, given, len(data), kind == task_messages.FAILED, came, went)


def _loaded(data: bytes, caught: type[BaseException]) -> Callable[..., Any]:
    """Return the function of a pickle; if there is none here, one that raises the error in each of its tasks."""
    try:
        function: Callable[..., Any] = pickle.loads(data)
    except caught as error:
        return function_cache.raising(error)
    return function


def _keep(ring: Any, number: int, kind: int, payload: Any) -> None:
    """Take a function for later tasks, and tell the parent, or forget it."""
    if kind & ~RICH == FUNCTION:
        function_cache.hold(number, payload)
        ring.send_all(number, task_messages.HAS_FUNCTION, b"")
    elif kind == FORGET:
        function_cache.forget(number)


def _send(ring: Any, number: int, kind: int, data: Any) -> None:
    while len(data) > LONGEST:
        ring.send_part(number, PART, data[:LONGEST])
        data = memoryview(data)[LONGEST:]
    ring.send_all(number, kind, data)
