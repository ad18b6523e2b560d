"""Calls that need libshm raise errors with the platform's name; questions about shared memory have an answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

from .conftest import HERE, Run

ALLOCATIONS = """
    import sys
    import numpy as np
    from mp_all import *
    import mp_all as mp

    like = np.ones(3)
    made = [
        mp.shared.empty(3), mp.shared.zeros(3), mp.shared.ones(3), mp.shared.full(3, 1.0), mp.shared.array([1.0]),
        mp.shared.frombuffer(like), mp.shared.empty_like(like), mp.shared.zeros_like(like),
        mp.shared.ones_like(like), mp.shared.full_like(like, 1.0), mp.share_memory(like),
    ]
    assert all(map(mp.is_shared, made))
    assert mp.shared.frozen([{"a": 1}])[0] == {"a": 1}
    for call in (lambda: mp.shared.named("name", 3, create=True), lambda: mp.shared.unlink("name")):
        try:
            call()
        except OSError as error:
            assert f"named arrays need libshm, which does not run on {sys.argv[1]}" in str(error), error
        else:
            raise AssertionError("nothing was raised")
    try:
        mp.timeline("run.html")
    except OSError as error:
        assert f"a timeline needs libshm, and this is {sys.argv[1]}" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    for size, error in ((2**70, MemoryError), (-1, ValueError), ("x", TypeError)):
        try:
            mp.Block(size)
        except error:
            continue
        raise AssertionError(size)
    try:
        mp.receive_lease(bytes(56))
    except ValueError as error:
        assert "damaged" in str(error)
    else:
        raise AssertionError("nothing was raised")
"""


def test_shared_arrays_can_be_made_and_only_named_ones_need_libshm(run: Run, platform: str) -> None:
    succeeded(run(ALLOCATIONS, "macOS" if platform == "macOS" else "Linux with MP_WITHOUT_LIBSHM=1"))


QUESTIONS = """
    import os
    import numpy as np
    import mp_all as mp

    assert mp.get_all_sharing_strategies() == {"file_system"}  # as torch has it on macOS and Windows
    mp.set_sharing_strategy("file_system")
    assert mp.get_sharing_strategy() == "file_system"
    try:
        mp.set_sharing_strategy("file_descriptor")
    except ValueError as error:
        assert "'file_system'" in str(error)
    else:
        raise AssertionError("nothing was raised")
    assert not mp.is_shared(np.ones(3)) and mp.get_sharing() is True
    assert set(mp.memory_stats().values()) == {0} and mp.list_segments() == []
    block = mp.Block(1000)
    stats = mp.memory_stats()
    assert (stats["live_bytes"], stats["live_blocks"], stats["segments"]) == (1000, 1, 1)
    assert [segment.holders for segment in mp.list_segments()] == [(os.getpid(),)]
    del block
    mp.empty_cache()
    assert mp.memory_stats()["live_bytes"] == mp.memory_stats()["cached_bytes"] == 0
    with mp.shared_allocator():
        assert not mp.is_shared(np.ones(10_000))
    mp.install_shared_allocator()
    assert not mp.is_shared(np.ones(10_000))
    mp.uninstall_shared_allocator()
    mp.set_thread_name("a name of more than fifteen bytes")
    assert mp.get_thread_name() == "a name of more ", mp.get_thread_name()
    mp.set_parent_death_signal(0)
    assert mp.collect_leases() == 0
"""


def test_questions_have_an_answer(run: Run) -> None:
    succeeded(run(QUESTIONS))


def test_a_bug_report_says_that_sharing_is_portable(run: Run, platform: str) -> None:
    shown = "macOS" if platform == "macOS" else "Linux with MP_WITHOUT_LIBSHM=1"
    report = succeeded(run("import runpy; runpy.run_module('mp_all', run_name='__main__')"))
    assert f"portable sharing on {shown}" in report
    listed = succeeded(run("import runpy; runpy.run_module('mp_all', run_name='__main__')", "stat"))
    assert listed == f"portable sharing on {shown}: no process lists the segments of others\n"


WINDOWS = """
    import windows
    import numpy as np
    import mp_all as mp
    from multiprocessing.reduction import ForkingPickler

    sent = np.asfortranarray(np.ones((200, 300)))
    received = ForkingPickler.loads(ForkingPickler.dumps([sent, sent[0]]))[0]
    assert mp.is_shared(received) and received.strides == sent.strides and received.sum() == 60_000
    shared = mp.shared.zeros(3)
    assert np.shares_memory(ForkingPickler.loads(ForkingPickler.dumps(shared)), shared)
    assert windows.mutexes > 4

    def refusal(call):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    for launch in (mp.spawn, mp.start_processes, mp.run, mp.ProcessContext):
        assert refusal(lambda: launch(print)).startswith("NotImplementedError: mp_spawn.")
    assert "AttributeError: mp_all.ProcessPoolExecutor is in mp-pool" in refusal(lambda: mp.ProcessPoolExecutor)
    assert mp.get_all_sharing_strategies() == {"file_system"} and issubclass(mp.ProcessRaisedException, Exception)
    pipe = object.__new__(windows.PipeConnection)
    pipe._handle = None
    assert ForkingPickler.loads(ForkingPickler.dumps(pipe)) == "a pipe of Windows"
"""


def test_the_packages_can_be_imported_and_used_on_windows(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    succeeded(run_script(tmp_path, WINDOWS, PYTHONPATH=path))


def test_an_invalid_switch_is_an_error(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import mp_core", MP_WITHOUT_LIBSHM="perhaps")
    assert done.returncode == 1
    assert "MP_WITHOUT_LIBSHM must be 1 for portable sharing, or 0, not 'perhaps'" in done.stderr


@pytest.mark.parametrize(
    ("system", "python", "left_alone"),
    [
        ("darwin", (3, 12, 1), False),
        ("darwin", (3, 12, 2), True),
        ("darwin", (3, 15, 0), True),
        ("linux", (3, 13, 0), False),
        ("win32", (3, 13, 0), False),
    ],
)
def test_the_resource_tracker_is_left_alone_on_macos_alone(
    monkeypatch: pytest.MonkeyPatch, system: str, python: tuple[int, ...], left_alone: bool
) -> None:
    from mp_core.children import resource_tracker
    from mp_core.system import machine

    monkeypatch.setattr(machine, "system", lambda: system)
    monkeypatch.setattr(machine, "python_version", lambda: python)
    assert resource_tracker.is_left_alone() is left_alone


TRACKER = """
    import atexit
    import sys
    from multiprocessing import resource_tracker
    import mp_core
    from mp_core.system import machine

    machine.python_version = lambda: (3, 12, 2)
    waited = lambda tracker: print("waits for the tracker", flush=True)
    resource_tracker.ResourceTracker.__del__ = waited
    resource_tracker.ensure_running()
    atexit.register(lambda: print("has a finalizer:", hasattr(resource_tracker.ResourceTracker, "__del__")))
    if sys.argv[1] == "installed":
        mp_core.install()
    atexit.register(lambda: print("exits"))
"""


@pytest.mark.parametrize("platform", ["macOS"], indirect=True)
def test_an_exit_on_macos_does_not_wait_for_the_tracker(run: Run) -> None:
    assert run(TRACKER, "").stdout.startswith("exits\nhas a finalizer: True\n")
    assert succeeded(run(TRACKER, "installed")) == "exits\nhas a finalizer: False\n"
