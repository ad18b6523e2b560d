"""`Task`: a call for one worker, and the sink for its outcome; `TaskSource` makes those of one `map` or `imap`.

Note [Items]
------------
An object for each tiny task would cost more than all else that is done for it. So a source hands out its tiny tasks as
items: tuples, which are made, counted, and looked up by functions in C. A task is made of an item when one is needed,
because the item goes back to the queue or its worker has died:

    source --> item --> batch --> worker --> outcome         (nearly always)
                |         |
                +----<----+--> as_task --> queue | WorkerLostError
"""

from __future__ import annotations

import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, groupby, islice, repeat
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType

from mp_core.children.main_module import NotInherited, main_can_be_imported
from mp_core.sharing.backend import is_small, plain_data
from mp_core.system.handler_errors import is_of_handler
from mp_pool.errors import WorkerLostError
from mp_pool.tasks import task_messages
from mp_pool.tasks.in_flight import Handles, dump_tracked, forget, release, withdraw
from mp_pool.tasks.mappers import starmap_chunk
from mp_pool.tasks.task_options import DEFAULTS, TaskOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from mp_pool.tasks.definitions import Definitions
    from mp_pool.tasks.shared_function import SharedFunction

#: (True, the result), (False, the exception), or (None, an `Unopened`)
Outcome = tuple["bool | None", "Any"]

if TYPE_CHECKING:

    class Sink(Protocol):
        """Takes the outcomes of the tasks of one call; it has the attribute `opens` if it knows an `Unopened`."""

        def _set(self, i: int, obj: Outcome, /) -> None: ...


class Task:
    """A call, and its state in the pool."""

    __slots__ = (
        "ahead",
        "args",
        "feeder",
        "function",
        "handles",
        "index",
        "items",
        "kind",
        "kwds",
        "number",
        "options",
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
        options: TaskOptions = DEFAULTS,
        shared: SharedFunction | None = None,
        items: int = 1,
    ) -> None:
        self.sink = sink
        self.index = index
        self.function = function
        self.args = args
        self.kwds = kwds
        #: The position in the user's iterable, for errors.
        self.position = index if position is None else position
        self.options = options
        #: How many times it may be repeated yet.
        self.retries = options.retries
        #: The function, if the workers get it apart from the task.
        self.shared = shared
        #: The number of the user's items.
        self.items = items
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
        #: The tasks that were pickled before a worker was free, with their bytes, while it is among them.
        self.ahead: dict[Task, int] | None = None

    def may_change(self) -> bool:
        """Tell whether the program may change what the task calls, and with what, before it is pickled."""
        if not is_small(self.args) or self.kwds:
            return True
        if self.shared is not None:
            return False
        function: Any = self.function
        kind = type(function)
        if kind is not FunctionType and not (kind is BuiltinFunctionType and type(function.__self__) is ModuleType):
            return True
        return brings_globals(function)

    def _is_ahead_no_more(self) -> None:
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.pop(self, None)

    def begin(self) -> bool:
        """Prepare to send the task; return False if it was cancelled."""
        self._is_ahead_no_more()
        if self.feeder is not None:
            self.feeder.room.release(self.feeder.weight(self))
            self.feeder = None
        return True

    def begin_at_once(self) -> bool:
        """
        Like `begin`, and leave no lock behind when a signal handler raises; return False if that is not possible now.
        """
        self._is_ahead_no_more()
        return self.feeder is None

    def return_to_queue(self) -> None:
        """Note that no worker has the task any more; `begin` comes again."""
        self.worker = None

    def pickle(self, definitions: Definitions) -> None:
        """Make the payload; raise any exception of pickling."""
        if self.payload is None:
            call = self._call()
            self.kind, self.payload = task_messages.PLAIN, plain_data(call)
            if self.payload is None:
                self.payload = task_messages.dump_plain(*call)
            if self.payload is None and self.shared is None:
                self.shared = definitions.of(self.function)
                if self.shared is not None:
                    call = self._call()
                    self.payload = task_messages.dump_plain(*call)
            if self.payload is None:
                try:
                    payload, self.handles = self._dumped(call, definitions)
                except Exception as error:
                    self.place(error)
                    raise
                self.kind, self.payload = task_messages.RICH, payload

    def _dumped(self, call: Any, definitions: Definitions) -> tuple[Any, Handles]:
        """Pickle the call: all that it has of the main module is the worker's own, or none is."""
        if self.shared is None:
            return dump_tracked(call, definitions.inheritance_for(self.function))
        if self.shared.is_named is False:
            return dump_tracked(call)
        try:
            return dump_tracked(call, definitions.inheritance, only_names=self.shared.is_named is True)
        except NotInherited:  # an argument has another definition
            self.shared = None
            return dump_tracked(self._call())

    def place(self, error: Exception) -> None:
        """Note in an error of pickling what could not be pickled."""
        from mp_core.messages.unpicklable import note

        where = f"the task {name_of(self)}"
        if task_messages.is_mapper(self.function):
            function, items = self.args[0]
            for place, item in enumerate(items, self.position):
                note(error, where, True, function=function, **{f"item {place}": item})
        elif is_of_many(self):
            note(error, where, True, function=self.function, **{f"item {self.position}": self.args[0]})
        else:
            note(error, where, True, function=self.function, args=self.args, kwds=self.kwds or {})

    def _call(self) -> tuple[Any, ...]:
        key = () if self.options.call is None else ((self.options.call, self.position),)
        if self.shared is None:
            return self.function, self.args, self.kwds or None, *key
        if task_messages.is_mapper(self.function):
            return self.function, ((self.shared.reference, self.args[0][1]),), self.kwds or None, *key
        return self.shared.reference, self.args, self.kwds or None, *key

    @property
    def called(self) -> Any:
        """What stands for the function in a batch."""
        return self.function if self.shared is None else self.shared.reference

    def has_answer(self) -> None:
        """Note that the worker has received the task, with its references. One without can be sent again."""
        if self.handles:
            forget(self.handles)
            self.handles = ()
        if self.kind or not self.retries:
            self.payload = None

    def is_repeated_after(self, error: BaseException) -> bool:
        """Tell whether the task is to be repeated, and count that."""
        if self.retries < 1 or not isinstance(error, (WorkerLostError, *self.options.retry_on)):
            return False
        self.retries -= 1
        return True

    def drop(self, begun: bool = False) -> None:
        """
        Release the resources of a payload that no worker has received; if it was *begun*, a worker that is dead now
        may have. The next `pickle` makes it again if it had some.
        """
        self._is_ahead_no_more()
        if self.payload is not None and self.kind == task_messages.RICH:
            payload, handles = self.payload, self.handles
            self.payload, self.handles = None, ()  # first: they are not released twice
            if begun:
                release(self.kind, payload, handles)
            else:
                withdraw(self.kind, payload, handles)


def brings_globals(function: Any) -> bool:
    """Tell whether *function* has no name, so that it goes with the globals that it uses."""
    if type(function) is FunctionType:
        return "<" in function.__qualname__ or (function.__module__ == "__main__" and not main_can_be_imported())
    return type(function) is not BuiltinFunctionType and not main_can_be_imported()


class TaskSource:
    """
    The tasks of one `map` or `imap`, one for each argument: each is made when it is handed out.

    *mapper* calls *function* for each part of an argument, if the arguments are chunks of *chunksize*. With *shared*,
    the workers get the function apart from the tasks.
    """

    def __init__(
        self,
        sink: Any,
        function: Callable[..., Any],
        mapper: Callable[..., Any] | None,
        chunksize: int,
        options: TaskOptions,
        shared: SharedFunction | None,
    ) -> None:
        self.sink, self.options, self.shared = sink, options, shared
        self._mapper, self._chunksize = mapper, chunksize
        self._arguments: Iterator[Any] = iter(())
        self._count = 0
        self._all_small = mapper is None and (shared is None or shared.kept) and options.call is None
        self.function = function
        #: What stands for it in a batch.
        self.called = function if shared is None else shared.reference

    def over(self, arguments: Iterable[Any]) -> TaskSource:
        """Make a task for each of *arguments*, which never block; return the source."""
        self._arguments = iter(arguments)
        return self

    def make(self, index: int, argument: Any) -> Task:
        """Return the task for the argument number *index*."""
        if self._mapper is None:
            return Task(self.sink, index, self.function, (argument,), None, index, self.options, self.shared)
        args, position = ((self.function, argument),), index * self._chunksize
        return Task(self.sink, index, self._mapper, args, None, position, self.options, self.shared, len(argument))

    def __next__(self) -> Task:
        task = self.make(self._count, next(self._arguments))
        self._count += 1
        return task

    def take_items(self, most: int, number: int) -> list[Item]:
        """
        Return the next tasks as items, at most so many, numbered from *number* on; none, now and later, if an argument
        is not small.
        """
        if not self._all_small:
            return []
        arguments = list(islice(self._arguments, most))
        if not all(map(is_small, arguments)):
            self._all_small = False
            self._arguments = chain(arguments, self._arguments)
            return []
        first, self._count = self._count, self._count + len(arguments)
        return list(zip(repeat(self.sink), count(first), arguments, repeat(self), count(number)))


#: A small task that is not made yet, see Note [Items]: its sink, its index, its argument, its source, its number.
Item = tuple["Sink", int, "Any", TaskSource, int]
#: An outcome on its way: the sink, the index there, the outcome, and the task, whose arguments must live until then: a
#: destructor of theirs delays no other task.
Delivery = tuple["Sink", int, Outcome, "Task | Item"]


def as_task(task: Task | Item) -> Task:
    """Return the task, made of an item if it is one."""
    if isinstance(task, Task):
        return task
    _, index, argument, source, number = task
    made = source.make(index, argument)
    made.number = number
    return made


def cancelled() -> Exception:
    from concurrent.futures import CancelledError

    return CancelledError("the task was cancelled")


def options_of(task: Task | Item) -> TaskOptions:
    return task.options if isinstance(task, Task) else task[3].options


def name_of(task: Task) -> str:
    return task_messages.name_of(task.function, task.args)


def is_of_many(task: Task) -> bool:
    """Tell whether *task* is one of a `map` or `imap`."""
    return hasattr(task.sink, "_number_left") or hasattr(task.sink, "_length")


def note_task(error: BaseException, task: Task, where: str) -> None:
    """Add to the exception of *task* which call it was, for which item, at which attempt, and *where*."""
    try:
        most = task.options.retries + 1
        attempt = f", attempt {most - task.retries} of {most}" if most > 1 else ""
        error.add_note(f"in {_call_of(error, task)}{attempt}, {where}")
    except Exception:
        pass  # it takes no notes, or the call is like no other: the scheduler goes on


def _call_of(error: BaseException, task: Task) -> str:
    args, index, place = task.args, task.position, task_messages.place_of(error)
    if args and task_messages.is_mapper(task.function):
        item = args[0][1][place]
        index += place
        is_spread = task.function is starmap_chunk and isinstance(item, tuple | list)
        args = tuple(item) if is_spread else (item,)
    named = (f"{key}={_described(each)}" for key, each in (task.kwds or {}).items())
    given = ", ".join([*map(_described, args), *named])
    given = given if len(given) <= DESCRIBED else given[: DESCRIBED - 1] + "…"
    is_item = index or task_messages.is_mapper(task.function) or is_of_many(task)
    return f"{name_of(task)}({given})" + (f", item {index}" if is_item else "")


DESCRIBED = 80  # characters
_ATOMS = (int, float, complex, bool, str, bytes, type(None))


def _described(thing: Any) -> str:
    """Describe an argument, by no code of the program, and no array by its content."""
    kind = type(thing)
    if kind in _ATOMS:
        return repr(thing[:DESCRIBED] if kind in (str, bytes) else thing)
    if kind in (tuple, list):
        inside = ", ".join(map(_described, thing[:4])) + ", …" * (len(thing) > 4)
        return f"[{inside}]" if kind is list else f"({inside})"
    if kind.__module__ == "numpy" and hasattr(kind, "dtype") and hasattr(kind, "shape"):
        return f"{kind.__name__} of {thing.dtype}, shape {thing.shape}"
    return f"<{kind.__qualname__}>"


def take_next(queue: deque[Task | TaskSource]) -> Task | None:
    """Remove the next task from *queue* and return it, or None. A source of tasks stays until it has no more."""
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


def delivery(task: Task, outcome: Outcome) -> Delivery:
    """Return the *outcome* of *task* on its way."""
    return task.sink, task.index, outcome, task


def deliver(sink: Sink, index: int, outcome: Outcome) -> None:
    """Hand the outcome of the task *index* to its sink; an exception of a callback affects no other task."""
    if outcome[0] is None and not hasattr(sink, "opens"):
        start_new_thread(lambda: deliver(sink, index, outcome[1].outcome()), ())
        return
    try:
        sink._set(index, outcome)
    except KeyError:
        pass  # the result was dropped
    except BaseException as error:
        report(error)


def deliver_all(outcomes: list[Delivery]) -> None:
    """
    Hand each outcome to the sink of its task as `deliver` does; those of one sink that follow each other, at once.
    """
    for sink, of_sink in groupby(outcomes, itemgetter(0)):
        if hasattr(sink, "_set_all"):
            try:
                sink._set_all(list(of_sink))
            except BaseException as error:
                report(error)
        else:
            for _, index, outcome, _ in of_sink:
                deliver(sink, index, outcome)


def abort_all(sinks: dict[Any, Any], error: BaseException) -> None:
    """Fail the results of a pool that will not come. Some may be of the standard classes, or of the program's own."""
    for sink in list(sinks.values()):
        try:
            if hasattr(sink, "_abort"):
                sink._abort(error)
            elif hasattr(sink, "_set_length"):  # an iterator: it ends with the error
                sink._set(sink._index, (False, error))
                sink._set_length(sink._index)
            else:
                sink._number_left = 1  # of a map, which has one result for all of its tasks
                sink._set(0, (False, error))
        except Exception as problem:
            report(problem)


def report(error: BaseException) -> None:
    """
    Print an exception of a callback, as `threading` prints that of a thread; raise what ends the program: Ctrl-C, or
    the `SystemExit` of a signal handler.
    """
    is_of_main = threading.current_thread() is threading.main_thread()
    if not isinstance(error, Exception) and is_of_main and (type(error) is KeyboardInterrupt or is_of_handler(error)):
        raise error
    try:
        if isinstance(error, SystemExit):  # which `threading` leaves out
            import traceback

            traceback.print_exception(error)
        else:
            threading.excepthook(
                threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
            )
    except BaseException as problem:  # of a hook of the program, or no standard error can be written
        if is_of_handler(problem):
            raise
        sys.__excepthook__(type(problem), problem, problem.__traceback__)  # which raises nothing
