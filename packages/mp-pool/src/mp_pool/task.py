"""`Task`: a call for one worker, and the sink for its outcome."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from mp_core.handler_errors import is_of_handler
from mp_pool import task_messages
from mp_pool._function_cache import FunctionReference
from mp_pool._in_flight import Handles, dump_tracked, forget, release

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any, Protocol

    from mp_pool._shared_function import SharedFunction

__all__ = ["Outcome", "Task", "deliver", "deliver_all", "name_of", "report", "take_next"]

#: (True, the result) or (False, the exception)
Outcome = tuple[bool, "Any"]

if TYPE_CHECKING:

    class Sink(Protocol):
        """Takes the outcomes of the tasks of one call."""

        def _set(self, i: int, obj: Outcome, /) -> None: ...


class Task:
    """A call, and its state in the pool."""

    __slots__ = (
        "args",
        "feeder",
        "function",
        "handles",
        "index",
        "kind",
        "kwds",
        "number",
        "payload",
        "position",
        "retries",
        "shared",
        "sink",
        "worker",
    )

    def __init__(
        self,
        sink: Sink,
        index: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwds: dict[str, Any] | None = None,
        position: int | None = None,
        retries: int = 0,
        shared: SharedFunction | None = None,
    ) -> None:
        self.sink = sink
        self.index = index
        self.function = function
        self.args = args
        self.kwds = kwds
        #: The position in the user's iterable, for errors.
        self.position = index if position is None else position
        self.retries = retries
        #: The function, if the workers get it apart from the task.
        self.shared = shared
        self.number = 0
        self.kind = 0
        #: The worker that it was sent to, unless it has been taken back.
        self.worker: Any = None
        #: The pickle, until the task has its answer: it may be taken back, or its worker may die.
        self.payload: Any = None
        #: The in-flight references in it.
        self.handles: Handles = ()
        #: The thread that waits for room in the queue.
        self.feeder: Any = None

    def begin(self) -> bool:
        """
        Prepare to send the task; return False if it was cancelled.
        """
        if self.feeder is not None:
            self.feeder.room.release(self.feeder.weight(self))
            self.feeder = None
        return True

    def begin_at_once(self) -> bool:
        """
        Do as `begin`, and leave no lock behind when a signal handler raises; return False if that is not possible now.
        """
        return self.feeder is None

    def return_to_queue(self) -> None:
        """
        Note that no worker has the task any more; `begin` comes again.
        """
        self.worker = None

    def pickle(self) -> None:
        """
        Make the payload; raise any exception of pickling.
        """
        if self.payload is None:
            function: Any = self.function
            args = self.args
            if self.shared is not None:
                reference = FunctionReference(self.shared.number)
                if task_messages.is_mapper(function):
                    args = ((reference, args[0][1]),)
                else:
                    function = reference
            self.kind, self.payload = task_messages.PLAIN, task_messages.dump_plain(function, args, self.kwds)
            if self.payload is None:
                payload, self.handles = dump_tracked((function, args, self.kwds or None))
                self.kind, self.payload = task_messages.RICH, payload

    @property
    def items(self) -> int:
        """The number of the user's items."""
        return len(self.args[0][1]) if task_messages.is_mapper(self.function) else 1

    def has_answer(self) -> None:
        """
        Note that the worker has received the task, with its references.
        """
        forget(self.handles)
        self.handles = ()

    def drop(self) -> None:
        """
        Release the resources of a payload that no worker has received, as far as is known. The next `pickle` makes it
        again.
        """
        if self.payload is not None:
            release(self.kind, self.payload, self.handles)
        self.payload = None
        self.handles = ()


def name_of(task: Task) -> str:
    """
    Return the name of the user's function.
    """
    return task_messages.name_of(task.function, task.args)


def take_next(queue: deque[Task | Iterator[Task]]) -> Task | None:
    """
    Remove the next task from *queue* and return it, or None. An iterator of tasks stays until it has no more.
    """
    while queue:
        item = queue[0]
        if isinstance(item, Task):
            queue.popleft()
            return item
        try:
            return next(item)
        except StopIteration:
            queue.popleft()
    return None


def deliver(task: Task, outcome: Outcome) -> None:
    """
    Hand the outcome of *task* to its sink; an exception of a callback affects no other task.
    """
    try:
        task.sink._set(task.index, outcome)
    except KeyError:
        pass  # the result was dropped
    except (Exception, SystemExit) as error:
        report(error)


def deliver_all(outcomes: list[tuple[Task, Outcome]]) -> None:
    """
    Hand each outcome to the sink of its task; those of one sink that follow each other, at once.
    """
    at, count = 0, len(outcomes)
    while at < count:
        task, outcome = outcomes[at]
        sink: Any = task.sink
        after = at + 1
        while after < count and outcomes[after][0].sink is sink:
            after += 1
        if after - at > 1 and hasattr(sink, "_set_all"):
            sink._set_all([(task.index, outcome) for task, outcome in outcomes[at:after]])
        else:
            for task, outcome in outcomes[at:after]:
                deliver(task, outcome)
        at = after


def report(error: BaseException) -> None:
    """
    Print an exception of a callback, as `threading` prints that of a thread; raise a `SystemExit` of a signal handler.
    """
    if isinstance(error, SystemExit):  # which `threading` leaves out
        if is_of_handler(error):
            raise error
        import traceback

        traceback.print_exception(error)
        return
    threading.excepthook(
        threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    )
