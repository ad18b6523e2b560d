"""The manager keeps no descriptor of the process that started it, and exits after the last user."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.carriers import TIMEOUT
from support.leaks import folders, processes
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
import mp_core

SENTINEL = """
    import sys, time
    from multiprocessing.connection import wait
    import numpy as np
    import mp_all as mp

    def work(queue):
        queue.put(np.ones(1 << 18))

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        queue = ctx.Queue()
        process = ctx.Process(target=work, args=(queue,))
        process.start()
        print(wait([process.sentinel], 20) == [process.sentinel])
        process.join()
        print(int(queue.get(timeout=20).sum()) == 1 << 18)
"""


def send_a_large_array(connection) -> None:
    connection.send(np.ones(1 << 18))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_parent_sees_at_once_the_end_of_a_child_that_started_the_manager(
    tmp_path: Path, strategy: str, method: str
) -> None:
    done = run_script(tmp_path, SENTINEL, method, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done).split() == ["True", "True"]


def test_the_output_of_a_program_ends_with_the_program(strategy: str) -> None:
    # A manager that had inherited the pipe of the output would keep the reader waiting.
    program = "import mp_all as mp; b = mp.Block(1); print(b.strategy)"
    done = subprocess.run(
        [sys.executable, "-c", f"import mp_all as mp; mp.set_sharing_strategy({strategy!r}); {program}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.stdout, done.stderr) == (f"{strategy}\n", "")


def test_the_manager_and_the_folder_go_with_the_program(tmp_path: Path, strategy: str) -> None:
    managers = {pid for pid, name in processes().items() if name == "shm-manager"}
    before = folders().keys()
    program = """
        import numpy as np
        import mp_all as mp

        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(2) as pool:
                print(int(sum(a.sum() for a in pool.map(np.ones, [1 << 16] * 4))))
                pool.close()
                pool.join()
    """
    done = run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == f"{4 << 16}\n"
    assert until(lambda: not {p for p, name in processes().items() if name == "shm-manager"} - managers)
    assert until(lambda: not folders().keys() - before)


def test_the_folder_of_a_killed_program_without_a_manager_goes_with_the_next_session(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        import mp_all as mp

        if __name__ == "__main__":
            with mp.Pool(1) as pool:
                assert pool.map(abs, [-1]) == [1]
                print(*os.listdir(f"{sys.argv[1]}/mpshm-{os.geteuid()}"), flush=True)
                if sys.argv[2] == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
    """
    first = run_script(tmp_path, program, str(tmp_path), "killed", MPSHM_RUNTIME_DIR=str(tmp_path)).stdout.split()
    assert len(first) == 1
    # Its worker ends a moment later than it, and is in the session so long.
    for _ in range(100):
        second = succeeded(run_script(tmp_path, program, str(tmp_path), "ends", MPSHM_RUNTIME_DIR=str(tmp_path)))
        if len(second.split()) == 1:
            break
    assert first[0] not in second.split()
    assert not list(tmp_path.glob("mpshm-*"))


def test_importing_starts_nothing(tmp_path: Path) -> None:
    program = """
        import ctypes  # NumPy imports it; newer versions of libffi keep a descriptor of their own file
        import os
        before = set(os.listdir("/proc/self/fd"))
        import mp_all as mp
        import numpy as np
        assert set(os.listdir("/proc/self/fd")) == before
        assert mp.memory_stats()["descriptors"] == 0
        assert mp.active_children() == []
        children = open(f"/proc/self/task/{os.getpid()}/children").read()
        assert children == "", children
    """
    assert succeeded(run_script(tmp_path, program)) == ""


def test_one_session_has_one_manager(ctx, strategy: str) -> None:
    mp.Block(1)
    before = {pid for pid, name in processes().items() if name == "shm-manager"}
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=send_a_large_array, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.poll(TIMEOUT)
    result = ours.recv()
    assert result.sum() == 1 << 18
    assert {pid for pid, name in processes().items() if name == "shm-manager"} <= before
    process.join(TIMEOUT)
    process.close()
    ours.close()


@pytest.mark.parametrize("lost", ["the file", "its mode"])
def test_a_copy_of_the_package_that_lost_its_manager_is_told_so(tmp_path: Path, lost: str) -> None:
    shutil.copytree(Path(mp_core.__file__).parent, tmp_path / "mp_core", ignore=shutil.ignore_patterns("__pycache__"))
    manager = tmp_path / "mp_core" / "shm-manager"
    if lost == "the file":
        manager.unlink()
    else:
        manager.chmod(0o600)
    program = """
        import mp_core

        try:
            mp_core.Block(1000)
        except OSError as error:
            print(error)
    """
    said = succeeded(run_script(tmp_path, program))
    assert f"{manager} is missing or may not be executed" in said and "install mp-core again" in said
