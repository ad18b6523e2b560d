"""Where the shared allocator is in force: scopes, threads, tasks, generators, decorators, whole processes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scripts import run_script, succeeded

import mp_all as mp

pytestmark = pytest.mark.usefixtures("strategy")


def allocates_shared() -> bool:
    """Return whether NumPy allocates an array in shared memory now."""
    return mp.is_shared(np.ones(10_000))


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


@pytest.fixture
def installed() -> Iterator[None]:
    mp.install_shared_allocator()
    yield
    mp.uninstall_shared_allocator()


# ---- scopes ----


def test_arrays_are_shared_inside_and_private_outside() -> None:
    assert not allocates_shared()
    with mp.shared_allocator():
        assert allocates_shared()
    assert not allocates_shared()


def test_an_array_outlives_its_scope() -> None:
    with mp.shared_allocator():
        a = np.arange(10_000)
    b = np.arange(10_000)
    assert mp.is_shared(a) and not mp.is_shared(b)
    assert (a == b).all()


def test_a_scope_inside_a_scope_leaves_the_outer_one_in_force() -> None:
    scope = mp.shared_allocator()
    with scope, mp.shared_allocator():
        with scope:
            assert allocates_shared()
        assert allocates_shared()
    assert not allocates_shared()


def test_an_exception_ends_the_scope() -> None:
    with pytest.raises(ZeroDivisionError), mp.shared_allocator(), mp.shared_allocator():
        _ = 1 / 0
    assert not allocates_shared()


def test_scopes_may_end_in_any_order() -> None:
    first, second, third = (mp.shared_allocator() for _ in range(3))
    first.__enter__()
    second.__enter__()
    third.__enter__()
    first.__exit__(None, None, None)
    assert allocates_shared()
    third.__exit__(None, None, None)
    assert allocates_shared()
    second.__exit__(None, None, None)
    assert not allocates_shared()


def test_a_scope_that_was_never_entered_ends_nothing() -> None:
    with mp.shared_allocator():
        mp.shared_allocator().__exit__(None, None, None)
        assert allocates_shared()
    assert not allocates_shared()


# ---- contexts: threads, tasks, generators ----


def test_a_scope_is_not_in_force_in_other_threads() -> None:
    with mp.shared_allocator():
        assert not in_a_thread(allocates_shared)
    entered, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with mp.shared_allocator():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(30)
    assert not allocates_shared()
    leave.set()
    thread.join()


def test_a_scope_that_ends_in_another_context_changes_nothing_there() -> None:
    scope = mp.shared_allocator()
    here = contextvars.copy_context()
    here.run(scope.__enter__)
    with mp.shared_allocator():
        scope.__exit__(None, None, None)
        assert allocates_shared()
    assert not allocates_shared()
    assert here.run(allocates_shared)
    here.run(scope.__exit__, None, None, None)
    assert not here.run(allocates_shared)


def test_tasks_made_inside_inherit_a_scope_and_others_do_not() -> None:
    async def main() -> list[bool]:
        go = asyncio.Event()

        async def ask() -> bool:
            await go.wait()
            return allocates_shared()

        async def enter_and_wait() -> bool:
            with mp.shared_allocator():
                await go.wait()
                return allocates_shared()

        before = asyncio.create_task(ask())
        with mp.shared_allocator():
            inside = asyncio.create_task(ask())
            in_thread = await asyncio.to_thread(allocates_shared)
        beside = asyncio.create_task(enter_and_wait())
        after = asyncio.create_task(ask())
        go.set()
        return [await before, await inside, in_thread, await beside, await after, allocates_shared()]

    assert asyncio.run(main()) == [False, True, True, True, False, False]
    assert not allocates_shared()


def test_interleaved_generators_leave_nothing_behind() -> None:
    def generator() -> Iterator[bool]:
        with mp.shared_allocator():
            yield allocates_shared()
            yield allocates_shared()

    first, second = generator(), generator()
    assert next(first) and next(second)
    first.close()
    assert next(second)
    second.close()
    assert not allocates_shared()


def test_a_generator_that_is_closed_in_another_thread_changes_nothing_there() -> None:
    def generator() -> Iterator[None]:
        with mp.shared_allocator():
            yield

    here = contextvars.copy_context()
    stopped = generator()
    here.run(next, stopped)

    def close() -> bool:
        with mp.shared_allocator():
            stopped.close()
            return allocates_shared()

    assert in_a_thread(close)
    assert not allocates_shared()


# ---- decorators ----


def test_a_decorated_function_is_inside() -> None:
    @mp.shared_allocator()
    def make(n: int) -> np.ndarray:
        """Made here."""
        return np.ones(n) if n < 20_000 else make(n // 2)

    assert mp.is_shared(make(100_000))
    assert (make.__name__, make.__doc__) == ("make", "Made here.")
    assert not allocates_shared()


def test_a_decorated_generator_is_inside_while_it_runs_and_not_while_its_caller_does() -> None:
    log: list[Any] = []

    @mp.shared_allocator()
    def generator() -> Iterator[Any]:
        try:
            log.append((yield allocates_shared()))
        except KeyError:
            log.append(allocates_shared())
        try:
            yield allocates_shared()
        finally:
            log.append(allocates_shared())

    assert inspect.isgeneratorfunction(generator)
    g = generator()
    assert next(g) and not allocates_shared()
    assert g.throw(KeyError()) and not allocates_shared()
    g.close()
    assert log == [True, True]
    g = generator()
    next(g)
    assert g.send("sent") and not allocates_shared()
    with pytest.raises(StopIteration):
        next(g)
    assert log == [True, True, "sent", True]


def test_decorated_coroutines_and_asynchronous_generators_are_inside() -> None:
    ended: list[bool] = []

    @mp.shared_allocator()
    async def coroutine() -> bool:
        await asyncio.sleep(0)
        return allocates_shared()

    @mp.shared_allocator()
    async def generator() -> AsyncIterator[bool]:
        try:
            yield allocates_shared()
            await asyncio.sleep(0)
            yield allocates_shared()
        finally:
            ended.append(allocates_shared())

    async def main() -> list[bool]:
        answers = [await coroutine(), allocates_shared()]
        async for answer in generator():
            answers += [answer, allocates_shared()]
        stopped = generator()
        answers.append(await anext(stopped))
        await stopped.aclose()  # type: ignore[attr-defined]
        return [*answers, allocates_shared()]

    assert inspect.iscoroutinefunction(coroutine) and inspect.isasyncgenfunction(generator)
    assert asyncio.run(main()) == [True, False, True, False, True, False, True, False]
    assert ended == [True, True]


# ---- whole processes ----


def test_installed_it_is_in_force_in_every_thread_old_and_new() -> None:
    go, answers = threading.Event(), []

    def wait_and_ask() -> None:
        go.wait(30)
        answers.append(allocates_shared())

    old = threading.Thread(target=wait_and_ask)
    old.start()
    mp.install_shared_allocator()
    try:
        go.set()
        old.join()
        assert answers == [True]
        assert in_a_thread(allocates_shared)
        assert allocates_shared()
    finally:
        mp.uninstall_shared_allocator()
    assert not allocates_shared()
    assert not in_a_thread(allocates_shared)


def test_installing_and_uninstalling_twice_is_once(installed: None) -> None:
    mp.install_shared_allocator()
    assert allocates_shared()
    mp.uninstall_shared_allocator()
    mp.uninstall_shared_allocator()
    assert not allocates_shared()


def test_a_scope_and_an_installation_do_not_end_each_other() -> None:
    with mp.shared_allocator():
        mp.install_shared_allocator()
        mp.uninstall_shared_allocator()
        assert allocates_shared()
        mp.install_shared_allocator()
    assert allocates_shared()
    mp.uninstall_shared_allocator()
    assert not allocates_shared()


def test_arrays_of_both_times_are_freed_and_resized_under_either(installed: None) -> None:
    shared = np.full(10_000, 1.0)
    mp.uninstall_shared_allocator()
    private = np.full(10_000, 2.0)
    shared.resize(20_000, refcheck=False)
    mp.install_shared_allocator()
    private.resize(20_000, refcheck=False)
    assert (shared[:10_000] == 1).all() and (private[:10_000] == 2).all()
    assert not shared[10_000:].any() and not private[10_000:].any()
    assert mp.is_shared(shared) and not mp.is_shared(private)


@pytest.mark.parametrize(("wish", "answer"), [("1", "True"), ("0", "False"), ("", "False")])
def test_the_environment_installs_it(tmp_path: Path, strategy: str, wish: str, answer: str) -> None:
    program = """
        import threading
        import numpy as np
        import mp_reductions as mp

        def ask():
            print(mp.is_shared(np.ones(10_000)))

        ask()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    """
    done = run_script(tmp_path, program, MP_SHARED_ALLOCATOR=wish, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == f"{answer}\n" * 2


def test_a_wish_that_is_none_is_refused(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import mp_reductions", MP_SHARED_ALLOCATOR="perhaps")
    assert done.returncode == 1
    assert "MP_SHARED_ALLOCATOR must be 1 or 0, not 'perhaps'" in done.stderr
