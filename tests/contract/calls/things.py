"""What tasks take, return and raise: each thing that is pickled in a way of its own, or not at all."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
from outcomes import kind, outcome, say


class Kept(Exception):
    def __init__(self, first: Any, *, second: int = 0) -> None:
        super().__init__(first)
        self.second = second

    def __reduce__(self) -> Any:
        return partial(Kept, second=self.second), self.args


class WithLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class NotSent:
    def __reduce__(self) -> NoReturn:
        raise ValueError("when it is sent")


Point = namedtuple("Point", "x y")


class Slots:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Slots({self.content})"


class Callables:
    def __call__(self, x: Any) -> Any:
        return "object", x

    def method(self, x: Any) -> Any:
        return "method", x

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return cls.__name__, x

    @staticmethod
    def static(x: Any) -> Any:
        return "static", x


def same(x: Any) -> Any:
    return x


def own_pid(_: Any) -> int:
    return os.getpid()


def keep(thing: Any) -> None:
    """Keep *thing* for the tasks of this worker, as an initializer."""
    global kept
    kept = thing


def get_kept(_: Any) -> Any:
    return kept


def wait_for_kept(_: Any) -> None:
    kept.wait(60)


def fail_to_begin() -> NoReturn:
    raise ValueError("in the initializer")


def some_then_raise() -> Iterator[int]:
    yield from range(3)
    raise ZeroDivisionError("in the iterable")


def raise_value(x: Any) -> None:
    raise ValueError("bad", x)


def raise_group(x: Any) -> None:
    raise ExceptionGroup("several", [ValueError(x), TypeError("other")])


def raise_with_note(x: Any) -> None:
    error = KeyError(x)
    error.add_note("a note")
    raise error


def raise_from_another(x: Any) -> None:
    raise RuntimeError("outer") from KeyError(x)


def raise_beside_another(x: Any) -> None:
    try:
        {}[x]
    except KeyError:
        raise RuntimeError("outer")  # noqa: B904


def raise_kept(x: Any) -> None:
    raise Kept(x, second=3)


def raise_with_lock(x: Any) -> None:
    raise WithLock("has a lock")


def raise_stop(x: Any) -> None:
    raise StopIteration(x)


def raise_of_system(x: Any) -> None:
    open("/no/such/file").close()


def raise_recursion(x: Any) -> None:
    raise_recursion(x)


def return_lambda(x: Any) -> Any:
    return lambda: x


def return_local(x: Any) -> Any:
    class Local:
        pass

    return Local()


def return_not_sent(x: Any) -> Any:
    return NotSent()


def return_lock(x: Any) -> Any:
    return threading.Lock()


def return_generator(x: Any) -> Any:
    return (i for i in range(3))


def return_module(x: Any) -> Any:
    return os


def return_exception(x: Any) -> Any:
    return ValueError("returned", x)


def return_arrays(x: Any) -> Any:
    array = np.arange(3) * x
    return array, {"a": [array], x: (array,)}, OrderedDict(z=array), np.full(200_000, x)


def return_other_arrays(x: Any) -> Any:
    fields = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    return fields, np.array(["a", None, [1]], dtype=object), np.ma.masked_array([1, 2], [0, 1]), np.empty((0, 3))


def return_scalars(x: Any) -> Any:
    return np.float32(1.5), np.int64(3), np.datetime64("2020-01-01"), np.bool_(True), 1 << 200, 1.5, 2j, ..., None


def return_containers(x: Any) -> Any:
    counts = defaultdict(list, {x: [1]})
    return Point(x, 2), Slots(x), frozenset([x]), {x}, counts, bytes(10), bytearray(b"ab"), range(3), slice(1, 2)


def return_one_twice(x: Any) -> Any:
    one = [x]
    return [one, one]


def return_cycle(x: Any) -> Any:
    cycle = [x]
    cycle.append(cycle)
    return cycle


def return_names(x: Any) -> Any:
    return Point, len, Callables.of_class, Callables.static, ValueError, os.path.join


TASKS: list[Callable[[Any], Any]] = [
    thing for name, thing in sorted(globals().items()) if name.startswith(("raise_", "return_"))
]
FUNCTIONS = {
    "a builtin": len,
    "a number": 3,
    "None": None,
    "a class": Point,
    "an object": Callables(),
    "a method": Callables().method,
    "a method of a class": Callables.of_class,
    "a static method": Callables.static,
    "a partial": partial(divmod, 7),
    "a partial of a partial": partial(partial(max, 1), 2),
    "a type": str,
    "one of two arguments": divmod,
    "a method of a text": "a-{}".format,
}


def recursive() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


ITERABLES: dict[str, Callable[[], Any]] = {
    "an iterable that raises": some_then_raise,
    "a number": lambda: 5,
    "nothing": list,
    "a dictionary": lambda: {"a": 1, "b": 2},
    "a text": lambda: "ab",
}
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "not sent": NotSent,
    "a lock of a thread": threading.Lock,
    "a generator": lambda: (i for i in "ab"),
    "a file": lambda: sys.stdout,
    "an exception": lambda: ValueError(1, 2),
    "a cycle": recursive,
    "an array": lambda: np.eye(2),
    "an array of objects": lambda: np.array([None, "a"], object),
    "an empty array": lambda: np.empty((0, 3)),
    "a long text": lambda: "x" * 100_000,
    "a deep list": lambda: eval("[" * 50 + "]" * 50),
}


def say_all(ways: dict[str, Callable[..., Any]], pool: Any) -> None:
    """Tell how each way of a call ends with each task, function and argument."""
    for way, call in ways.items():
        for task in TASKS:
            say(f"{way}: {task.__name__}", outcome(call, pool, task, 1))
        for name, function in FUNCTIONS.items():
            say(f"{way}: {name}", outcome(call, pool, function, 1))
        for name, make in ARGUMENTS.items():
            say(f"{way}: with {name}", kind(outcome(call, pool, same, make())))
