"""The launcher on the stand-in for macOS: without pidfds, /proc, memfds and the kernel's signals of descriptors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.scripts import succeeded
from support.waiting import until

from mp_core.system.control_groups import quota

from .conftest import HERE, Run

pytestmark = pytest.mark.parametrize("platform", ["macOS"], indirect=True)
METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])

RANKS = """
    import os
    import signal
    import sys
    import threading
    import mp_all as mp

    def product(rank, factor):
        return rank * factor

    def fails(rank):
        if rank == 1:
            raise KeyError("one")
        threading.Event().wait()

    def is_killed(rank):
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def leaves(rank):
        sys.exit(3)

    def waits(rank):
        threading.Event().wait()

    def speaks(rank):
        print("rank", rank)

    def refused(call, *args, **options):
        try:
            call(*args, **options, start_method=sys.argv[1])
        except Exception as error:
            return error

    if __name__ == "__main__":
        assert sys.platform == "darwin" and not hasattr(os, "pidfd_open") and not os.path.exists("/proc")
        assert mp.run(product, (3,), 3, start_method=sys.argv[1]) == [0, 3, 6]
        error = refused(mp.start_processes, fails, nprocs=2)
        assert isinstance(error, mp.ProcessRaisedException) and isinstance(error.__cause__, KeyError), error
        assert "-- Process 1 terminated with the following error:" in str(error)
        error = refused(mp.start_processes, is_killed, nprocs=2)
        assert str(error) == "process 0 terminated with signal SIGKILL" and error.exit_code == -9, error
        error = refused(mp.start_processes, leaves, nprocs=1)
        assert isinstance(error, mp.ProcessExitedException) and error.exit_code == 3, error
        assert isinstance(refused(mp.run, waits, nprocs=2, timeout=1.0), TimeoutError)
        started = mp.start_processes(speaks, nprocs=2, join=False, output="capture", start_method=sys.argv[1])
        assert started.join()
        print([captured.stdout for captured in started.captured])
"""


@METHODS
def test_ranks_return_fail_die_and_are_captured(run: Run, method: str) -> None:
    done = run(RANKS, method)
    assert (done.returncode, done.stdout) == (0, "['rank 0\\n', 'rank 1\\n']\n"), done.stderr


def test_the_command_starts_ranks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    text = """
        import sys
        from mp_spawn.command.main import main

        if __name__ == "__main__":
            sys.exit(main(["-n", "2", "ranks.py"]))
    """
    lines = succeeded(run(text)).splitlines()
    assert sorted(line.split("] ")[-1].split("| ")[-1].strip() for line in lines) == ["0 of 2", "1 of 2"], lines


def test_the_command_starts_a_rank_for_each_processor_and_refuses_to_bind_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    text = """
        import sys
        from mp_spawn.command.main import main

        if __name__ == "__main__":
            sys.exit(main(["-n", *sys.argv[1:], "ranks.py"]))
    """
    lines = succeeded(run(text, "auto")).splitlines()
    assert len(lines) == max(1, int(min(os.cpu_count() or 1, quota()))), lines
    refused = run(text, "2", "--bind", "0:0")
    assert refused.returncode == 2, refused.stderr
    assert "--bind is not supported on this system; leave it out" in refused.stderr


PARENT = """
    import os
    import sys
    import threading
    import mp_all as mp

    def rank(number):
        open(f"{number}.pid", "w").write(f"{os.getpid()}\\n")
        threading.Event().wait()

    if __name__ == "__main__":
        mp.start_processes(rank, nprocs=2, start_method=sys.argv[1])
"""


@METHODS
def test_no_rank_outlives_a_killed_parent(platform: str, tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PARENT))
    parent = subprocess.Popen(
        [sys.executable, "program.py", method],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE / "macos")},
        start_new_session=True,
    )
    files = [tmp_path / f"{number}.pid" for number in range(2)]
    try:
        until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), 60)
        pids = [int(file.read_text()) for file in files]
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 30)
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
