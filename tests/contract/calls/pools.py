"""The calls of a pool: each way of a call with each task, and the life of a pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import things
from outcomes import LONG, engine, make_pool, method, mp, outcome, plain, say, steps_of


def called_back(start: Callable[..., Any]) -> tuple[list[Any], bool]:
    """Return what the callbacks got, and whether the result says that the call was successful."""
    found: list[Any] = []
    event = threading.Event()

    def take(kind: str, value: Any) -> None:
        found.extend((kind, value))
        event.set()

    result = start(callback=lambda value: take("callback", value), error_callback=lambda error: take("error", error))
    event.wait(LONG)
    result.wait(LONG)
    return found, result.successful()


def one_by_one(results: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(results.next(LONG))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


WAYS: dict[str, Callable[..., Any]] = {
    "apply": lambda pool, f, x: pool.apply(f, (x,)),
    "apply_async": lambda pool, f, x: pool.apply_async(f, (x,)).get(LONG),
    "map": lambda pool, f, x: pool.map(f, [x, x]),
    "map in chunks": lambda pool, f, x: pool.map(f, [x, x, x], 2),
    "imap": lambda pool, f, x: list(pool.imap(f, [x, x])),
    "imap, one by one": lambda pool, f, x: one_by_one(pool.imap(f, [x, x])),
    "imap_unordered": lambda pool, f, x: list(pool.imap_unordered(f, [x, x], 2)),
    "starmap": lambda pool, f, x: pool.starmap(f, [(x,), [x]]),
    "callbacks": lambda pool, f, x: called_back(lambda **options: pool.apply_async(f, (x,), **options)),
    "callbacks of map": lambda pool, f, x: called_back(lambda **options: pool.map_async(f, [x, x], **options)),
}
ITERATIONS = "map", "imap", "imap_unordered", "starmap"


def calls() -> None:
    with make_pool(2) as pool:
        things.say_all(WAYS, pool)
        for name in ITERATIONS:
            for what, iterable in things.ITERABLES.items():
                say(f"{name} of {what}", outcome(in_order, getattr(pool, name), iterable()))
        say("apply with keywords", outcome(pool.apply, dict, (), {"a": 1}), outcome(pool.apply, dict, ({"a": 1},)))
        say("apply with wrong keywords", outcome(pool.apply, divmod, (), {"a": 1}))
        say("apply with a list and a text", *(outcome(pool.apply, things.same, args) for args in ([5], "a")))
        say("starmap of numbers", outcome(pool.starmap, things.same, [1, 2]))
        say("a pool as an argument", outcome(pool.apply, things.same, (pool,)))
        say("a pool in a worker", outcome(pool.apply, start_pool))
        say("a process in a worker", outcome(pool.apply, start_process))
        results = pool.imap(things.same, [1, 2])
        say("imap", iter(results) is results, *(outcome(each) for each in [results.next, *[results.__next__] * 3]))
        say("a call in a callback", outcome(call_in_callback, pool))
        failed = pool.apply_async(things.raise_value, (1,))
        failed.wait(LONG)
        say("a failed result", failed.ready(), failed.successful(), outcome(failed.get), outcome(failed.get))


def in_order(call: Callable[..., Any], iterable: Any) -> list[Any]:
    return sorted(call(things.same, iterable))


def start_pool() -> None:
    mp.get_context(method).Pool(1)


def start_process() -> None:
    mp.get_context(method).Process(target=things.same, args=(1,)).start()


def call_in_callback(pool: Any) -> list[Any]:
    found: list[Any] = []
    done = threading.Event()

    def end(value: Any) -> None:
        found.append(value)
        done.set()

    pool.apply_async(things.same, (1,), callback=lambda x: pool.apply_async(things.same, (x + 1,), callback=end))
    done.wait(LONG)
    return found


LIVES = (
    *(
        "close(); join()",
        "terminate(); join()",
        "join()",
        "close(); close(); join(); join()",
        "close(); terminate(); join()",
    ),
    *("terminate(); terminate()", "terminate(); close()", "terminate(); close(); apply(same, [1])"),
    *("__enter__() is thing; __exit__(None, None, None); map(same, [1])", "close(); __enter__()"),
    *(
        f"{end}(); {call}(same, [1])"
        for end in ("close", "terminate")
        for call in ("apply", "apply_async", "map", "starmap_async", "imap", "imap_unordered")
    ),
)


def lives() -> None:
    for count in (0, -1, 1.5, "2"):
        say(f"a pool of {count!r}", outcome(make_pool, count))
    say("an initializer that is none", outcome(make_pool, 1, 3))
    for count in (0, -1, "a"):
        say(f"maxtasksperchild={count!r}", outcome(lambda: make_pool(1, maxtasksperchild=count)))  # noqa: B023
    for life in LIVES:
        pool = make_pool(1)
        say(life, *steps_of(pool, life, same=things.same))
        pool.terminate()
        pool.join()
    with make_pool(1, things.keep, (5,)) as pool:
        say("an initializer", outcome(pool.map, things.get_kept, [1, 2]))
    for chunksize in (1, 2):
        with make_pool(1, maxtasksperchild=2) as pool:
            count = len(set(pool.map(things.own_pid, range(8), chunksize)))
            say(f"workers for 8 items in chunks of {chunksize}, 2 tasks each", count)
    if not engine:
        event = mp.Event()
        with make_pool(1, things.keep, (event,)) as pool:
            say("a timeout", *timeouts(pool))
            result = pool.apply_async(things.wait_for_kept, (1,))
            say("not ready", result.ready(), outcome(result.successful), outcome(result.wait, 0.01))
            event.set()
            say("ready", outcome(result.get, LONG), result.ready(), result.successful())


def timeouts(pool: Any) -> list[str]:
    async_result = pool.apply_async(things.wait_for_kept, (1,))
    return [
        *(f"{seconds!r}: {outcome(async_result.get, seconds)}" for seconds in (0, 0.01, -1, "a")),
        outcome(pool.map_async(things.wait_for_kept, [1, 2]).get, 0.01),
        outcome(pool.imap(things.wait_for_kept, [1]).next, 0.01),
        plain(async_result.ready()),
    ]


if __name__ == "__main__":
    mp.set_start_method(method)
    calls()
    lives()
