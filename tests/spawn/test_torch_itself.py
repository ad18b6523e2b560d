"""torch's launcher and mp-spawn have the same signatures, attributes, texts and pickles."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import signal
from typing import Any

import pytest
import rank_functions as ranks

import mp_spawn

pytestmark = pytest.mark.timeout(300)  # each of torch's ranks imports torch


@pytest.fixture(scope="module")
def torch_spawn() -> Any:
    return pytest.importorskip("torch.multiprocessing", reason="needs torch, which is not installed").start_processes


@pytest.fixture(scope="module")
def theirs(torch_spawn: Any) -> Any:
    """Return torch's module; `torch.multiprocessing.spawn` is the function."""
    import sys

    return sys.modules[torch_spawn.__module__]


def torchs(signature: inspect.Signature) -> list[tuple[str, Any]]:
    """Return the names and defaults of the positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [(p.name, p.default) for p in signature.parameters.values() if p.kind in kinds]


@pytest.mark.parametrize(
    "name",
    [
        "spawn",
        "start_processes",
        "ProcessContext",
        "ProcessContext.join",
        "ProcessContext.pids",
        "SpawnContext",
        "ProcessException",
        "ProcessRaisedException",
        "ProcessExitedException",
    ],
)
def test_signatures_are_the_same(theirs: Any, name: str) -> None:
    signatures = []
    for module in (theirs, mp_spawn):
        thing = module
        for part in name.split("."):
            thing = getattr(thing, part)
        signatures.append(torchs(inspect.signature(thing)))
    assert signatures[0] == signatures[1]


def test_all_names_of_torch_exist(theirs: Any) -> None:
    own = {
        name
        for name, thing in vars(theirs).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == theirs.__name__
    }
    assert own <= set(mp_spawn.__all__)
    assert "ENV_VAR_PARALLEL_START" in vars(theirs)


def test_a_context_has_the_attributes_of_torchs(theirs: Any) -> None:
    contexts = [
        module.start_processes(ranks.nothing, nprocs=2, join=False, start_method="fork")
        for module in (theirs, mp_spawn)
    ]
    public = [{name for name in dir(context) if not name.startswith("_")} for context in contexts]
    assert public[0] <= public[1]
    for name in ("processes", "error_files"):
        assert type(getattr(contexts[0], name)) is type(getattr(contexts[1], name))
        assert len(getattr(contexts[1], name)) == 2
    assert type(contexts[0].sentinels) is type(contexts[1].sentinels)
    assert sorted(contexts[0].sentinels.values()) == sorted(contexts[1].sentinels.values())
    for context in contexts:
        while not context.join(timeout=5):
            pass
        assert context.join() is True


FAILURES = {
    "raises": (ranks.raise_odd, (1,)),
    "killed": (ranks.kill_self, (1, signal.SIGKILL)),
    "aborted": (ranks.kill_self, (1, signal.SIGABRT)),
    "exits": (ranks.leave_hard, (3,)),
    "leaves": (ranks.leave, (4,)),
}


def alike(text: str) -> str:
    """Remove the frames of the launcher itself: torch's traceback has one, and that of mp-spawn none."""
    return re.sub(r'  File ".*spawn\.py", line \d+, in _wrap\n(    .*\n)+', "", text)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_the_same_text(theirs: Any, name: str) -> None:
    fn, args = FAILURES[name]
    errors = []
    for module in (theirs, mp_spawn):
        with pytest.raises(module.ProcessException) as caught:
            module.start_processes(fn, args, 2, start_method="fork")
        errors.append(caught.value)
    one, other = errors
    assert type(one).__name__ == type(other).__name__
    assert [kind.__name__ for kind in type(one).__mro__] == [kind.__name__ for kind in type(other).__mro__]
    assert alike(str(one)) == str(other)
    assert set(vars(one)) <= {name for name in dir(other) if not name.startswith("__")}
    for attribute in ("msg", "error_index", "exit_code", "signal_name"):
        assert hasattr(one, attribute) == hasattr(other, attribute)
        if attribute != "msg" and hasattr(one, attribute):
            assert getattr(one, attribute) == getattr(other, attribute)
    copies = [pickle.loads(pickle.dumps(error)) for error in errors]
    for error, copy in zip(errors, copies, strict=True):
        assert type(copy) is type(error)
        assert (str(copy), copy.error_index, copy.error_pid) == (str(error), error.error_index, error.error_pid)


def test_the_warnings_are_of_the_same_kind(theirs: Any) -> None:
    for module in (theirs, mp_spawn):
        with pytest.warns(FutureWarning):
            assert module.spawn(ranks.nothing, nprocs=1, start_method="fork") is None
        with pytest.warns(Warning) as warned:
            module.SpawnContext([], [])
        assert len(warned) == 1
    assert os.environ.get(mp_spawn.ENV_VAR_PARALLEL_START) is None
