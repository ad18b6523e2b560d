"""`Admission`: accepts the tasks of an executor; starts the workers with the first, and ends them when it is closed.

Note [A signal handler in the middle]
-------------------------------------
A signal handler runs in the main thread between any two lines of `submit`, and may itself submit, close, or kill the
workers. If its thread already has the lock, it has interrupted a `submit` or `close` below it on the stack. So it only
notes what it was asked for, and the interrupted call does it when it has given back the lock:

    submit      queues its task; the interrupted `submit` hands out both
    close       the interrupted `submit` queues its task, or finds that it is too late, then closes the scheduler
    kill        the same, but it ends the workers
    an exception of the handler    the interrupted call does what was noted and hands out what is queued, then raises it

No thread waits for the scheduler's thread while it has the lock: a callback, which runs there, may submit. A child that
was forked while another thread had the lock never takes it: it asks first whether the pool is its own.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

from mp_core.sharing.backend import TryLock
from mp_core.system.weak_sets import members
from mp_pool.scheduling.scheduler import TERMINATED, Scheduler
from mp_pool.scheduling.unopened import imports_under_way
from mp_pool.tasks.task import Task, brings_globals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_EXIT = "cannot schedule new futures after interpreter shutdown"


class Admission:
    """
    The way of the tasks of a `ProcessPoolExecutor` to a scheduler.

    *make* makes the scheduler, and another one if its start has failed. *broken* makes the exception of `submit` when
    the workers could not be started.
    """

    def __init__(self, make: Callable[[], Scheduler], broken: Callable[[BaseException], BaseException]) -> None:
        self.closed = self.started = False
        self._make, self._broken = make, broken
        self.scheduler = make()
        self._lock: Any = TryLock()
        self._starts = False
        self._at_once: bool | None = None  # the workers are killed, or ended by SIGTERM; None for neither

    def current(self) -> Scheduler:
        """Return the scheduler for new tasks: another one, if the start of the last has failed."""
        if self.scheduler.state >= TERMINATED and not self.started:
            try:
                self._lock.wait()
                ended = self.scheduler
                if ended.state >= TERMINATED and not (self.started or self.closed):
                    new = self._make()
                    new.watches = ended.watches
                    self.scheduler = new
            finally:
                self._lock.release()
        return self.scheduler

    def submit(self, tasks: Sequence[Task], scheduler: Scheduler) -> None:
        """Queue *tasks*, which were made for this *scheduler*, and send those that workers take."""
        scheduler.check_own()
        if imports_under_way:
            tasks = [task for task in tasks if scheduler.is_pickled_here(task)]
        nested = self._lock.is_mine()
        try:
            if tasks and brings_globals(tasks[0].function):
                self._prepare(tasks, scheduler)
            try:
                self._lock.wait()
                self._check_open()
                self._start(scheduler)
                for task in tasks:
                    scheduler.enqueue(task)
            finally:
                self._lock.release()
        except BaseException:  # of a signal handler
            for task in tasks:
                scheduler.withdraw(task)
            raise
        finally:
            if nested:
                scheduler.wake()  # in case that another handler keeps the interrupted `submit` from it
            else:
                self._settle()

    def _prepare(self, tasks: Sequence[Task], scheduler: Scheduler) -> None:
        """Pickle the tasks, with the globals as they are now."""
        try:
            self._lock.wait()
            self._check_open()
            self._start(scheduler)  # what the workers inherit, no task brings
        finally:
            self._lock.release()
        for task in tasks:
            scheduler.prepare_ahead(task)

    def _check_open(self) -> None:
        if self.scheduler.reason is not None:
            raise self._broken(self.scheduler.reason)
        if self.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _exiting:
            raise RuntimeError(AT_EXIT)

    def _start(self, scheduler: Scheduler) -> None:
        if self._starts and scheduler is self.scheduler:
            return
        if scheduler is not self.scheduler or scheduler.state >= TERMINATED:
            raise RuntimeError("the workers could not be started for the task of another thread; submit this one again")
        try:
            self._starts = True
            _running.add(scheduler)
            if _exiting:  # otherwise `_at_exit` finds it there
                raise RuntimeError(AT_EXIT)
            scheduler.start()
        finally:
            # Without a call, before which a signal handler could raise.
            self.started = self._starts = scheduler.has_started and scheduler.state < TERMINATED
        if not self.started:  # its thread has ended already: it is broken, or `_at_exit` has closed it
            self._check_open()
            raise RuntimeError(AT_EXIT)

    def _settle(self) -> None:
        if self.closed:
            self._end()
        if self.started:
            self.scheduler.hand_out()

    def close(self, drop: Callable[[], None] | None = None) -> bool:
        """
        Accept no more tasks, call *drop*, and let the workers end when all tasks are done: `shutdown` of an executor.

        Return whether the caller may wait for the end: False in a signal handler that has interrupted `submit` or
        `close`, and in a forked child.
        """
        if not self.scheduler.is_own():
            self.closed = True
            return False
        nested = self._lock.is_mine()
        try:
            try:
                self._lock.wait()
                self.closed = True
            finally:
                self._lock.release()
            if drop is not None:
                drop()
        finally:
            if not nested:
                self._settle()
        return not nested

    def drop(self) -> None:
        """End the workers when all tasks are done: nobody has the executor any more."""
        self.scheduler.close()

    def kill(self, at_once: bool, drop: Callable[[], None]) -> None:
        """
        Like `close`, but end the workers now, by SIGTERM first unless *at_once*. It does not wait: a handler that
        calls it may have interrupted a method of a future, whose lock the scheduler's thread needs.
        """
        self._at_once = at_once or bool(self._at_once)
        self.close(drop)

    def _end(self) -> None:
        scheduler = self.scheduler
        if not self.started:
            scheduler.close()
            scheduler.discard()
        elif self._at_once is None:
            scheduler.close()
        else:
            scheduler.begin_end(self._at_once)


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
_exiting = False


def _at_exit() -> None:
    global _exiting
    _exiting = True
    running = [scheduler for scheduler in members(_running) if scheduler.is_own()]
    # In an interactive session, an earlier Ctrl-C is no reason to drop tasks.
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
        for scheduler in running:
            scheduler.terminate()
    for scheduler in running:
        scheduler.close()
    try:
        for scheduler in running:
            scheduler.join()
    except KeyboardInterrupt:
        for scheduler in running:
            scheduler.terminate(at_once=True)
        raise


# It runs before the interpreter waits for its threads, and finishes all futures, as the standard library does.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
