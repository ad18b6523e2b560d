"""The calls of tasks as the nodes get them: pickled by value, and a function that many tasks call apart from them."""

from __future__ import annotations

import functools
import pickle
from typing import Any

from mp_nodes.by_value import pack_by_value
from mp_nodes.pool.buffers import LEAST
from mp_nodes.pool.messages import Packed
from mp_nodes.pool.worker import dump
from mp_pool.tasks import task_messages
from mp_pool.tasks.task import Task, name_of


class SharedFunction:
    """A function that goes to each node once. When no task has it any more, the nodes forget it."""

    # Of those of a pool on this machine: a node's pool has them of its own.
    kept, reference = False, None

    def __init__(self, number: int, function: Packed) -> None:
        self.number = number
        self.function = function


def is_name(function: Any) -> bool:
    """Tell whether another process finds the function by its name in a module."""
    return task_messages.is_plain(function)


def pickled(task: Task, beside: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle the call of a task by value, without the function if the nodes get it apart; large buffers *beside* it."""
    try:
        return _pickled(task, beside)
    except Exception as error:
        task.place(error)
        raise


def _pickled(task: Task, beside: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
    function: Any = task.function
    dumps = _beside if beside else _whole
    what = f"a task of {name_of(task)}"
    if task.shared is None:
        if is_name(function) and not task.kwds and all(map(task_messages.is_plain, task.args)):
            return pickle.dumps((function, task.args, None), 5), []
        return dumps((function, task.args, task.kwds), what)
    if task_messages.is_mapper(function):
        chunk = task.args[0][1]
        if task_messages.is_plain(chunk):
            return pickle.dumps((function, (chunk,), None), 5), []
        return dumps((function, (chunk,), None), what)
    return dumps((None, task.args, task.kwds), what)


def _whole(thing: Any, what: str) -> tuple[bytes, list[pickle.PickleBuffer]]:
    return dump(thing, what), []


_beside = functools.partial(pack_by_value, least=LEAST)
