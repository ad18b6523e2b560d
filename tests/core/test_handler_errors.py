"""The exception of a signal handler that interrupts a user's function is told from an error of the function."""

from __future__ import annotations

import functools
import pickle
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.carriers import TIMEOUT

import mp_all as mp
from mp_core.installation import contexts
from mp_core.system.handler_errors import is_of_handler


class TimeLimit(Exception):
    """Raised by a handler."""


class Interrupting:
    """A signal comes while it is pickled for the first time."""

    was_pickled = False

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.was_pickled:
            self.was_pickled = True
            signal.raise_signal(signal.SIGUSR1)
        return int, ()


class Refusing:
    """Cannot be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TimeLimit("of its own")


class Odd:
    """Equal to everything, or to nothing without an error."""

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer

    def __eq__(self, other: object) -> bool:
        if self.answer is None:
            raise RuntimeError("compared")
        return self.answer

    __hash__ = object.__hash__


class RefusingBeside:
    """Cannot be pickled, and has a tuple of odd objects among the variables of its function."""

    def __init__(self, answer: bool | None) -> None:
        self.beside = (Odd(answer), np.arange(3))

    def __reduce__(self) -> tuple[Any, ...]:
        beside = self.beside
        raise TimeLimit(f"beside {len(beside)}")


def handle(number: int, frame: FrameType | None) -> None:
    raise TimeLimit


class Handler:
    def __call__(self, *arguments: object) -> None:
        raise TimeLimit


def once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeLimit


HANDLERS = [handle, Handler(), once, functools.partial(lambda what, number, frame: handle(number, frame), 1)]


@pytest.fixture(params=HANDLERS, ids=["a function", "an object", "that removes itself", "a partial of a lambda"])
def handler(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def test_the_exception_of_a_handler_is_recognised(handler: Callable[..., None]) -> None:
    with pytest.raises(TimeLimit) as raised:
        Interrupting().__reduce__()
    assert is_of_handler(raised.value)


def test_another_exception_is_not(handler: Callable[..., None]) -> None:
    with pytest.raises(TimeLimit) as raised:
        Refusing().__reduce__()
    assert not is_of_handler(raised.value)


def test_put_raises_it_and_prints_the_errors_of_pickling(
    handler: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    queue = contexts.default_context.Queue(1)  # whose put pickles, as a feeder thread does with MP_CHANNEL=0
    with pytest.raises(TimeLimit):
        queue.put(Interrupting())
    assert capsys.readouterr().err == ""
    queue.put(Refusing())
    assert "of its own" in capsys.readouterr().err
    queue.put(3, timeout=10)  # both have given their places back
    assert queue.get(timeout=10) == 3
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("shared", [False, True], ids=["in a task", "in the function of many tasks"])
def test_submit_raises_it_and_the_errors_of_pickling_are_the_outcome(
    handler: Callable[..., None], shared: bool
) -> None:
    with mp.get_context("fork").Pool(1) as pool:
        pool.apply(abs, (1,))
        with pytest.raises(TimeLimit):
            if shared:
                pool.map(functools.partial(divmod, Interrupting()), [1, 2])
            else:
                pool.apply_async(abs, (Interrupting(),))
        result = pool.apply_async(abs, (Refusing(),))
        with pytest.raises(TimeLimit, match="of its own"):
            result.get(10)


@pytest.mark.parametrize("answer", [True, None])
def test_no_comparison_of_the_program_is_called_to_tell_whose_an_error_is(answer: bool | None) -> None:
    with pytest.raises(TimeLimit) as raised:
        pickle.dumps(RefusingBeside(answer))
    assert not is_of_handler(raised.value)


@pytest.mark.parametrize("answer", [True, None])
def test_an_executor_goes_on_after_an_argument_that_cannot_be_pickled(start_method: str, answer: bool | None) -> None:
    with mp.ProcessPoolExecutor(1, mp_context=mp.get_context(start_method)) as executor:
        for _ in range(3):
            assert executor.submit(abs, -1).result(TIMEOUT) == 1
            with pytest.raises(TimeLimit):
                executor.submit(abs, RefusingBeside(answer)).result(TIMEOUT)
        assert executor.submit(abs, -1).result(TIMEOUT) == 1
