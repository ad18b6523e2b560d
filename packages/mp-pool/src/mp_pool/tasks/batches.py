"""Many tiny tasks in one message.

Note [Tiny tasks]
-----------------
A message, a pickle and a function by name for each task cost more than a tiny task itself. So a worker gets up to
`MOST` of them in one message, which is numbered as its first task. It claims each before it begins it, and sends each
result before it claims the next. So each is a task of its own: one is lost at a death, and those that are not begun
can be taken back from behind a long one.
"""

from __future__ import annotations

import pickle
from types import ModuleType

from mp_core.sharing.backend import LONGEST, is_small
from mp_pool.tasks.function_cache import FunctionReference
from mp_pool.tasks.task import Item, Task
from mp_pool.tasks.task_messages import FUNCTIONS, is_mapper, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_pool.tasks.shared_function import SharedFunction

MOST = 256  # tasks of a batch


def packed(tasks: list[Task] | list[Item]) -> bytes | None:
    """
    Return the message for *tasks*, or for items of one source; None if it is too long, or a function cannot be pickled.
    `task_messages.unpacked` reads it.

    Each function has a pickle of its own in it: one that the worker does not find fails its own tasks only.
    """
    functions: dict[Any, int] = {}
    given: Any = tasks
    if isinstance(given[0], Task):
        indices = [functions.setdefault(task.called, len(functions)) for task in given]
        arguments = [task.args for task in given]
    else:
        functions[given[0][3].called], indices = 0, None
        arguments = [item[2] for item in given]
    try:
        payload = pickle.dumps(([pickle.dumps(function, 5) for function in functions], indices, arguments), 5)
    except Exception:
        return None
    return payload if len(payload) <= LONGEST else None


def shared_by(tasks: list[Task] | list[Item]) -> set[SharedFunction]:
    """Return the functions that a worker needs before the batch of *tasks*."""
    given: Any = tasks
    each = {task.shared for task in given} if isinstance(given[0], Task) else {given[0][3].shared}
    return each - {None}


def fits(task: Task, functions: dict[Any, Any]) -> bool:
    """
    Tell whether *task* may be in a batch: what it is called with is small, is not changed by any task, and needs no
    reducers, so that one pickle for many is the same as a pickle for each. *functions* are those of the batch.
    """
    if task.payload is not None or task.kwds or task.options.call is not None:
        return False
    if task.shared is not None and not task.shared.kept:
        return False
    return function_fits(task.called, functions) and is_small(task.args)


def function_fits(function: Any, functions: dict[Any, Any]) -> bool:
    """Tell whether tasks with *function*, or what stands for it, may be in a batch, of which *functions* are."""
    if type(function) is FunctionReference:
        # Of a function that is kept; one in a batch, since the globals of each are set before it is called.
        return functions.setdefault(FunctionReference, function) is function
    if type(function) not in FUNCTIONS:
        return False
    known = functions.get(function)
    if known is None:
        known = functions[function] = _may_be_shared(function)
    return known


def _may_be_shared(function: Any) -> bool:
    if not isinstance(getattr(function, "__self__", None), ModuleType | None):
        return False  # a method of an object, which each task gets a copy of
    return not is_mapper(function) and is_plain(function)
