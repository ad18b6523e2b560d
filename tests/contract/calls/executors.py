"""The calls of an executor: each way of a call with each task, and the life of an executor and its futures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import as_completed, wait
from typing import Any

import things
from outcomes import LONG, make_executor, method, mp, outcome, say

WAYS: dict[str, Callable[..., Any]] = {
    "submit": lambda executor, f, x: executor.submit(f, x).result(LONG),
    "exception": lambda executor, f, x: executor.submit(f, x).exception(LONG),
    "map": lambda executor, f, x: list(executor.map(f, [x, x])),
    "map in chunks": lambda executor, f, x: list(executor.map(f, [x, x, x], chunksize=2)),
}


def calls() -> None:
    with make_executor(2) as executor:
        things.say_all(WAYS, executor)
        say("map of two", outcome(lambda: list(executor.map(divmod, [7, 9], [2, 4]))))
        say("map of uneven ones", outcome(lambda: list(executor.map(divmod, [7, 9], [2]))))
        say("map of none", outcome(lambda: list(executor.map(things.same))))
        say("map of nothing", outcome(lambda: list(executor.map(things.same, []))))
        say("map of a number", outcome(lambda: list(executor.map(things.same, 5))))
        say(
            "map of an iterable that raises", outcome(lambda: list(executor.map(things.same, things.some_then_raise())))
        )
        say("map, chunksize=0", outcome(lambda: list(executor.map(things.same, [1], chunksize=0))))
        say("submit of nothing", outcome(executor.submit))
        say("submit with keywords", outcome(lambda: executor.submit(dict, a=1).result(LONG)))


def lives() -> None:
    for count in (0, -1, 1.5, "a"):
        say(f"an executor of {count!r}", outcome(lambda: make_executor(count).shutdown()))  # noqa: B023
    say("an initializer that is none", outcome(make_executor, 1, initializer=3))
    with make_executor(1, initializer=things.keep, initargs=(6,)) as executor:
        say("an initializer", outcome(lambda: list(executor.map(things.get_kept, [1, 2]))))
    with make_executor(1, initializer=things.fail_to_begin) as executor:
        say("an initializer that raises", outcome(lambda: executor.submit(things.same, 1).result(LONG)))
        say("and again", outcome(lambda: executor.submit(things.same, 1).result(LONG)))
    executor = make_executor(1)
    say("shutdown, and again", outcome(executor.shutdown), outcome(executor.shutdown))
    say("calls after it", outcome(executor.submit, things.same, 1), outcome(executor.map, things.same, [1]))
    event = mp.Event()
    with make_executor(1, initializer=things.keep, initargs=(event,)) as executor:
        say("futures", *futures(executor, event))
    event.clear()
    executor = make_executor(1, initializer=things.keep, initargs=(event,))
    begun = [executor.submit(things.wait_for_kept, i) for i in range(6)]
    while not begun[0].running():
        pass
    executor.shutdown(wait=False, cancel_futures=True)
    while not begun[-1].done():
        pass
    event.set()
    executor.shutdown()
    say("cancel_futures", outcome(begun[0].result), begun[-1].cancelled(), outcome(begun[-1].result))
    with make_executor(1) as executor:
        say(
            "a worker that ends",
            *(base.__name__ for base in type(ended(executor)).__mro__ if "Broken" in base.__name__),
        )


def ended(executor: Any) -> Any:
    return executor.submit(os._exit, 3).exception(LONG)


def futures(executor: Any, event: Any) -> list[Any]:
    running = executor.submit(things.wait_for_kept, 0)
    pending = [executor.submit(things.same, i) for i in range(5)]
    while not running.running():
        pass
    last = pending.pop()
    found = [last.cancel(), last.cancelled(), last.done(), outcome(last.result), outcome(last.exception)]
    found += [outcome(running.result, 0.01), outcome(running.exception, 0.01), running.cancel(), running.running()]
    late = outcome(lambda: list(executor.map(things.wait_for_kept, [1], timeout=0.01)))
    event.set()
    done, rest = wait([running, *pending], timeout=LONG)
    found += [late, len(done), len(rest), sorted(future.result() for future in as_completed(pending))]
    found += [running.cancel(), running.cancelled(), running.running(), running.done()]
    called: list[bool] = []
    pending[0].add_done_callback(lambda future: called.append(future is pending[0]))
    return [*found, called, *(re.sub(r"_?Future at 0x\w+", "Future", str(future)) for future in (last, pending[0]))]


if __name__ == "__main__":
    mp.set_start_method(method)
    calls()
    lives()
