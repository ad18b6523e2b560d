"""The children of the tests: they import a test's module without pytest and Hypothesis."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mp_all as mp

INTEGERS = st.integers(0, 3) | st.none()


@given(INTEGERS)
def has_a_strategy(number: int | None) -> None:
    """Exist, as a property of a module that a child imports."""


def loaded(queue: Any) -> None:
    queue.put([name for name in ("_pytest", "hypothesis.core") if name in sys.modules])


def raises(queue: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        queue.put(1 // 0)
    queue.put("_pytest" in sys.modules)


@pytest.mark.parametrize(("target", "expected"), [(loaded, []), (raises, True)])
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_child_imports_pytest_only_if_its_target_uses_it(start_method: str, target: Any, expected: object) -> None:
    ctx = mp.get_context(start_method)
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=target, args=(queue,))
    child.start()
    assert queue.get() == expected
    child.join()
    queue.close()
