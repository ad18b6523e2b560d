"""The calls of locks, and of values and arrays of ctypes."""

from __future__ import annotations

import ctypes
import re
import threading
from typing import Any

from outcomes import method, mp, outcome, say, steps_of, submodule

LOCKS = "Lock()", "RLock()", "Semaphore()", "Semaphore(2)", "Semaphore(value=0)", "BoundedSemaphore()"
STEPS = """release(); acquire(False); acquire(False); acquire(True, 0.01); acquire(True, 0); release(); release();
    release(); __enter__(); __exit__(None, None, None); acquire(block=False); acquire(False, 1)"""


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


def locks() -> None:
    for made in LOCKS:
        lock = eval(f"mp.{made}")
        say(made, *steps_of(lock, STEPS), re.sub(r" at 0x\w+", "", repr(lock)), hasattr(lock, "get_value"))
    for name in ("Lock", "RLock"):
        say(f"{name}, released by another thread", *released_by_another_thread(getattr(mp, name)()))
    for name in ("Semaphore", "BoundedSemaphore"):
        for value in (0, -1, "'a'", 1.5, 1 << 40):
            say(f"{name}({value})", outcome(eval, f"type(mp.{name}({value})).__name__", {"mp": mp}))


def released_by_another_thread(lock: Any) -> list[str]:
    lock.acquire()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(outcome(lock.release)))
    thread.start()
    thread.join()
    return found


def waits() -> None:
    steps = "wait(); notify(); notify_all(); release(); acquire(); wait(0.01); wait_for(lambda: 0, 0.01)"
    say("Condition", *steps_of(mp.Condition(), f"{steps}; wait_for(lambda: 5); notify(0); notify(); release()"))
    say("Condition of a lock", *steps_of(mp, "Condition(mp.Lock()).acquire(); Condition(5)", mp=mp))
    steps = "is_set(); wait(0.01); wait(-1); set(); set(); is_set(); wait(); wait(0); clear(); wait('a'); is_set()"
    say("Event", *steps_of(mp.Event(), steps))
    say("Barrier", *steps_of(mp.Barrier(1), "wait(); abort(); broken; wait(); reset(); wait(); parties; n_waiting"))
    say("Barrier of two, alone", *steps_of(mp.Barrier(2, timeout=0.01), "wait(); broken; wait(); reset(); broken"))
    say("Barrier whose action raises", *steps_of(mp.Barrier(1, action=fail), "wait(); broken"))


def fail() -> None:
    raise ZeroDivisionError


VALUES = (
    *("Value('i')", "Value('i', 5)", "Value('d', 'a')", "Value('x')", "Value('c', b'a')", "Value('i', 1 << 40)"),
    *("Value('i', 1, 2)", "Value(Pair, 1, 2.5)", "RawValue('d', 2)", "RawValue(ctypes.c_bool)"),
    *(f"Array('i', {size})" for size in ("3", "[1, 2]", "-1", "1.5", "['a']", "'ab'", "(1, 2)", "range(2)", "None")),
    *("Array('c', b'abc')", "Array('c', 4)", "Array('x', 2)", "Array(Pair, [(1, 2.0)])"),
    *("RawArray('d', range(3))", "RawArray('u', 'ab')", "RawArray('i', 0)", "RawArray('b', b'ab')"),
)
READS = "__len__(); __getitem__(slice(None)); __getitem__(5); __getitem__(slice(None, None, -1)); value; raw"


def values() -> None:
    for made in VALUES:
        say(made, outcome(contents, made))
    value, array = mp.Value("i", 1), mp.Array("i", 3)
    say("a value is set", *(outcome(setattr, value, "value", each) for each in ("a", 2.5, 7)), value.value)
    sets = [(0, 5), (slice(0, 2), [1, 2]), (slice(0, 2), [1]), (7, 1), (0, "a"), (slice(0, 3), range(3)), (-1, 9)]
    say("an array is set", *(outcome(array.__setitem__, *each) for each in sets), array[:])
    for lock in ("True", "False", "None", "mp.Lock()", "mp.RLock()", "5", "'a'"):
        made = f"__class__; Value('i', 1, lock={lock}).value; Array('i', 1, lock={lock})[:]"
        say(f"lock={lock}", *steps_of(mp, made, mp=mp)[1:])
    with value, value.get_lock():
        value.value += 1
    say("a value that is locked twice", value.value)
    types = submodule("sharedctypes")
    say(
        "sharedctypes",
        *steps_of(types, "synchronized(raw).value; synchronized(5); copy(raw).value", raw=mp.RawValue("i")),
    )


def contents(made: str) -> list[Any]:
    thing = eval(f"mp.{made}")
    has = [hasattr(thing, name) for name in ("get_lock", "get_obj", "acquire", "release")]
    return [type(thing).__name__, *has, *steps_of(thing, READS)]


if __name__ == "__main__":
    mp.set_start_method(method)
    for part in (locks, waits, values):
        part()
