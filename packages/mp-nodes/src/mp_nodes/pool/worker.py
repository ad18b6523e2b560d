"""In a worker of a node: run a task that has come from another machine, and pickle its result by value."""

from __future__ import annotations

import pickle
from typing import Any

from mp_core.sharing.backend import pickled_by_value, recorders
from mp_nodes.by_value import dumps_by_value
from mp_nodes.pool.messages import Packed
from mp_pool.tasks.task_messages import dump_error, is_plain, name_of, unsent


def begin(initializer: Packed) -> None:
    """Call the user's initializer."""
    function, args = initializer.load()
    function(*args)


def run(data: bytes, *buffers: Any) -> tuple[bool, bytes]:
    """Run the task of this pickle: (function, args, kwds), with the buffers beside it."""
    try:
        function, args, kwds = pickle.loads(data, buffers=buffers)
        _name_task(function, args)
        value = function(*args, **(kwds or {}))
    except Exception as error:
        return False, dump_error_by_value(error)
    return _dump_result(value)


class Caller:
    """Calls a function that many tasks have in common: `mp_pool` takes this object to each worker once."""

    def __init__(self, function: Packed) -> None:
        self._function = function

    def __call__(self, data: bytes, *buffers: Any) -> tuple[bool, bytes]:
        """Run the task of this pickle: (mapper, args, kwds). A mapper takes the function and a chunk."""
        try:
            mapper, args, kwds = pickle.loads(data, buffers=buffers)
            function = self._function.load()
            _name_task(function, args)
            value = function(*args, **(kwds or {})) if mapper is None else mapper((function, *args))
        except Exception as error:
            return False, dump_error_by_value(error)
        return _dump_result(value)


def _name_task(function: Any, args: Any) -> None:
    for recorder in recorders:
        recorder.called = name_of(function, args)


def _dump_result(value: Any) -> tuple[bool, bytes]:
    try:
        return True, dump(value, "the result of a task")
    except Exception as error:
        return False, dump_error_by_value(unsent(error, value))


def dump(value: Any, what: str) -> bytes:
    """Pickle by value; *what* names it in the error."""
    return pickle.dumps(value, 5) if is_plain(value) else dumps_by_value(value, what)


def dump_error_by_value(error: BaseException) -> bytes:
    """Pickle an exception by value, with its traceback as text."""
    return pickled_by_value(dump_error, error).data  # type: ignore[no-any-return]
