"""Errors say what was wrong, with the value, and what to do."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from multiprocessing import synchronize
from typing import Any

import numpy as np
import pytest
from support.scripts import run_python, succeeded

import mp_all as mp
from mp_core.installation import contexts
from mp_core.messages import unpicklable
from mp_core.system import settings

UNSET = {name: "" for name in settings.KNOWN if name in os.environ}


class Model:
    def __init__(self) -> None:
        self._lock = threading.Lock()


class Slotted:
    __slots__ = ("part",)

    def __init__(self) -> None:
        self.part = [1, Model()]


class Sent:
    def __init__(self) -> None:
        self.model = Model()


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def nothing(*args: Any, **options: Any) -> None:
    pass


def standard_lock() -> Any:
    """Return a lock that cannot travel in a message."""
    return synchronize.Lock(ctx=multiprocessing.get_context())


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "args[1].model._lock in the task nothing": (lambda pool: pool.apply(nothing, (1, Sent())), "__getstate__"),
    "kwds['x']['k'][0]._lock in the task": (lambda pool: pool.apply(nothing, (), {"x": {"k": (Model(),)}}), "lock"),
    "item 2.model._lock in the task": (lambda pool: pool.map(nothing, [0, 1, Sent()]), "lock"),
    "item 7.model._lock in the task nothing": (lambda pool: pool.map(nothing, [*range(7), Sent()], 4), "lock"),
    "item 1 in the task nothing, of type 'Lock'": (lambda pool: pool.map(nothing, [0, standard_lock()]), "initargs="),
    "item 0 in the task nothing, of type 'Lock'": (lambda pool: [*pool.imap(nothing, [standard_lock()])], "initargs="),
    "args[1] in the task nothing": (lambda pool: pool.apply(nothing, (lambda: 1, threading.Lock())), "__getstate__"),
    "args[0][1]._lock in the task": (lambda pool: pool.apply(nothing, ([np.ones(200_000), Model()],)), "lock"),
}


@pytest.mark.parametrize("path", CALLS)
def test_an_error_of_pickling_names_the_part_the_task_and_the_remedy(path: str) -> None:
    call, remedy = CALLS[path]
    with mp.get_context("fork").Pool(1) as pool:
        with pytest.raises((TypeError, RuntimeError)) as raised:
            call(pool)
        assert path in notes(raised.value)
        assert remedy in notes(raised.value)
        assert pool.apply(abs, (-3,)) == 3
    assert mp.memory_stats()["in_flight_bytes"] == 0


def test_an_error_of_an_executor_names_the_part() -> None:
    context = mp.get_context("fork")
    with mp.ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(TypeError) as raised:
        executor.submit(nothing, 1, x=Sent()).result()
    assert "kwds['x'].model._lock in the task nothing, of type 'lock'" in notes(raised.value)


def test_an_object_that_python_pickles_by_a_state_of_its_own_is_named_itself() -> None:
    error = TypeError()
    unpicklable.note(error, "a message", obj=Slotted())
    assert "[1]._lock in a message, of type 'lock'" in notes(error)
    unpicklable.note(fine := TypeError(), "a message", obj=[1, 2])
    assert not notes(fine)


def test_an_error_that_put_prints_names_the_part_and_the_line() -> None:
    code = """if True:
        import threading
        import mp_all as mp
        queue = mp.Queue()
        queue.put({"k": [threading.Lock()]})
        queue.put("next")
        print(queue.get())
    """
    done = run_python("-c", code, **UNSET)
    assert done.stdout == "next\n"
    assert "obj['k'][0] in put(obj), of type 'lock', cannot be pickled" in done.stderr
    assert "the put is at <string>:5; mp_all.set_strict_put(True) raises the error there" in done.stderr


def test_contexts_and_pools_name_what_there_is() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'spwan'; the start methods here are 'fork'"):
        contexts.default_context.get_context("spwan")
    with mp.get_context("fork").Pool(1) as pool, pytest.raises(ValueError, match=r"call close\(\) or terminate\(\)"):
        pool.join()


def test_a_start_method_that_is_set_twice_is_named() -> None:
    code = """if True:
        import mp_all as mp
        mp.set_start_method("spawn")
        try:
            mp.set_start_method("fork")
        except RuntimeError as error:
            print(error)
        mp.set_start_method("fork", force=True)
        print(mp.get_start_method())
    """
    said = succeeded(run_python("-c", code, **UNSET))
    assert said.startswith("context has already been set, to 'spawn': ") and "pass force=True\nfork" in said


def test_sizes_and_shapes_are_named() -> None:
    with pytest.raises(TypeError, match=r"not 2\.5"):
        mp.shared.zeros(2.5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"not 2\.5"):
        mp.shared.named("x", 2.5, create=True)  # type: ignore[call-overload]
    before = mp.get_inline_limit()
    mp.set_inline_limit("4KiB")
    assert mp.get_inline_limit() == 4096
    mp.set_inline_limit(before)
    with pytest.raises(ValueError, match="'many' is not a number of bytes"):
        mp.set_inline_limit("many")


def test_names_of_the_package_are_its_own() -> None:
    with pytest.raises(AttributeError, match="module 'mp_all' has no attribute 'Pooll'"):
        _ = mp.Pooll  # type: ignore[attr-defined]
    said = run_python("-c", "import mp_all; mp_all.Pooll", **UNSET)
    assert "Did you mean: 'Pool'?" in said.stderr
    assert {name for name in dir(mp.shared) if not name.startswith("_")} == {*mp.shared.__all__}


@pytest.mark.parametrize("name", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_the_queue_functions_are_the_types_that_stubs_say(name: str) -> None:
    function = getattr(mp, name)
    made = function[int](*[3] * (name != "SimpleQueue"))
    assert isinstance(made, function) and not isinstance(queue.Queue(), function)
    assert isinstance(mp.JoinableQueue(), mp.Queue) and not isinstance(mp.Queue(), mp.JoinableQueue)
    made.put(1)
    assert made.get() == 1
    if name != "SimpleQueue":
        with pytest.raises(queue.Full):
            for _ in range(4):
                made.put_nowait(1)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on", "0", "False", "no", "off", ""])
def test_every_switch_knows_the_same_words(value: str) -> None:
    on = value.lower() in ("1", "true", "yes", "on")
    code = (
        "import multiprocessing\nfrom mp_core.system import settings\n"
        "print(multiprocessing.Pool.__func__.__module__, settings.traces())"
    )
    said = succeeded(run_python("-c", code, **{**UNSET, "MP_ALL": value, "MP_TRACE": value}))
    assert said == f"{'mp_pool' if on else 'multiprocessing'}.context{'s' if on else ''} {on}\n"


@pytest.mark.parametrize("name", ["MP_ALL", "MP_SHARE", "MP_CHANNEL", "MP_TRACE", "MP_STRICT_PUT"])
def test_another_word_for_a_switch_is_an_error(name: str) -> None:
    done = run_python("-c", "import multiprocessing, mp_all; print('ran')", **{**UNSET, name: "perhaps"})
    assert done.returncode == 1 and "ran" not in done.stdout
    assert f"{name} must be 1" in done.stderr and "not 'perhaps'" in done.stderr
    assert name != "MP_ALL" or len(done.stderr.splitlines()) == 1  # Python is starting


@pytest.mark.parametrize(
    ("name", "value"),
    [("MP_SPIN_US", "50us"), ("MP_SPIN_US", "-1"), ("MP_SPIN_US", "1000001"), ("MPSHM_DUMP", "maybe")],
)
def test_a_wrong_value_of_a_variable_that_libshm_reads_is_an_error(name: str, value: str) -> None:
    done = run_python("-c", "import mp_all", **{**UNSET, name: value})
    assert done.returncode == 1
    assert f"{name}" in done.stderr.splitlines()[-1] and repr(value) in done.stderr


def test_a_variable_that_is_nearly_one_of_ours_is_named() -> None:
    done = run_python("-c", "import mp_all", **{**UNSET, "MP_INLINE_BYTE": "1", "MP_ROLE": "a program's own"})
    assert done.returncode == 0
    assert "MP_INLINE_BYTE in the environment is not read: did you mean MP_INLINE_BYTES?" in done.stderr
    assert "MP_ROLE" not in done.stderr
    done = run_python("-c", "import mp_all", **{**UNSET, "MP_INLINE_LIMIT": "1", "MP_API_KEY": "a program's own"})
    assert "MP_INLINE_LIMIT in the environment is not read: did you mean MP_INLINE_BYTES?" in done.stderr
    assert "MP_API_KEY" not in done.stderr
    code = "import mp_all; print(mp_all.get_context('spawn').Pool(1).apply(mp_all.shared.ones, (3,)))"
    assert run_python("-c", code, **{**UNSET, "MP_INLINE_BYTE": "1"}).stderr.count("did you mean") == 1
    said = succeeded(run_python("-W", "ignore", "-m", "mp_all", **{**UNSET, "MP_INLINE_BYTE": "1", "MP_ROLE": "x"}))
    assert "MP_INLINE_BYTE (did you mean MP_INLINE_BYTES?), MP_ROLE" in said
