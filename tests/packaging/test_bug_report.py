"""`python -m mp_all` and its `stat` print the facts for a bug report."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import ended
from support.scripts import run_python, succeeded
from support.waiting import until

import mp_all as mp
from mp_all import _limits, _sessions
from mp_all._stat import health, stat

HOLD = """
    import sys
    import mp_all as mp

    mp.set_sharing_strategy(sys.argv[1])
    array = mp.shared.zeros(1_000_000)
    print("ready", flush=True)
    sys.stdin.read()
"""


class Program:
    """
    A program that holds 8 MB of shared memory in a session and a runtime folder of its own.
    """

    def __init__(self, folder: Path, strategy: str, *more: bytes) -> None:
        self.environment = {"MPSHM_RUNTIME_DIR": str(folder)}
        path = folder / "hold.py"
        path.write_text("\n".join(line.strip() for line in HOLD.splitlines()))
        self.process = subprocess.Popen(
            [sys.executable, path.name, strategy, *more],
            cwd=folder,
            env=os.environ | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def session(self) -> _sessions.Session:
        (session,) = _sessions.sessions(Path(self.environment["MPSHM_RUNTIME_DIR"]) / f"mpshm-{os.geteuid()}")
        return session

    def manager(self) -> int:
        manager = self.session().manager
        assert manager is not None
        return manager.pid

    def stat(self) -> str:
        return succeeded(run_python("-m", "mp_all", "stat", **self.environment))

    def report(self) -> str:
        return succeeded(run_python("-m", "mp_all", **self.environment))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["file_descriptor"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    """
    Start the program under the given strategy, and end it after the test.
    """
    program = Program(tmp_path, request.param)
    yield program
    program.end()


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def wait_until(pid: int, *states: str) -> None:
    deadline = time.monotonic() + 20
    while state_of(pid) not in states:
        assert time.monotonic() < deadline, f"process {pid} is in the state {state_of(pid)}"
        time.sleep(0.01)


def test_a_report_has_every_version_and_limit_and_confirms_sharing() -> None:
    report = succeeded(run_python("-m", "mp_all"))
    for word in (
        *(
            "python  ",
            "system  ",
            "mp-all",
            "mp-core",
            "mp-reductions",
            "mp-spawn",
            "mp-pool",
            "mp-nodes",
            "mp-cuda",
            "mp-torch",
        ),
        *("numpy", "cffi"),
        *("strategy", "start method", "descriptors", "/dev/shm", "runtime folder", "memory", "container"),
        *("processors", "vm.overcommit_memory", "bindings"),
    ):
        assert f"  {word}" in report, word
    assert mp.__version__ in report
    for strategy in mp.get_all_sharing_strategies():
        assert re.search(rf"try {strategy} +works; an array was made in [\d.]+ ms", report)


def test_a_report_names_the_origin_of_a_setting() -> None:
    report = succeeded(run_python("-m", "mp_all", MP_SHARING_STRATEGY="file_system", MP_SHARED_ALLOCATOR="1"))
    assert re.search(r"strategy +file_system \(from MP_SHARING_STRATEGY\)", report)
    assert re.search(r"NumPy allocates +in shared memory \(from MP_SHARED_ALLOCATOR\)", report)


def test_a_report_has_the_reason_if_sharing_does_not_work(tmp_path: Path) -> None:
    report = succeeded(run_python("-m", "mp_all", MPSHM_RUNTIME_DIR=str(tmp_path / "missing")))
    assert re.search(r"try file_descriptor +FAILED: .*MPSHM_RUNTIME_DIR", report)


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "caf? a?b é"), ("ascii", "caf? a?b \\xe9")])
def test_stat_shows_a_process_whose_command_has_any_bytes(tmp_path: Path, encoding: str, shown: str) -> None:
    program = Program(tmp_path, "file_descriptor", b"caf\xe9", b"a\nb", "é".encode())
    try:
        done = run_python("-m", "mp_all", "stat", PYTHONIOENCODING=encoding, **program.environment)
        assert succeeded(done).rstrip().endswith(shown)
        assert "caf?" in succeeded(run_python("-m", "mp_all", "stat", "--json", **program.environment))
    finally:
        program.end()


def test_stat_without_any_session_says_so(tmp_path: Path) -> None:
    done = run_python("-m", "mp_all", "stat", MPSHM_RUNTIME_DIR=str(tmp_path))
    assert succeeded(done) == "no process of this user shares memory now\n"


def test_a_program_that_shares_is_listed_with_its_bytes_its_command_and_its_manager(program: Program) -> None:
    stat = program.stat()
    pid = program.process.pid
    assert re.search(rf"file_descriptor +{pid} .* 1 +7.6 MiB +0 bytes +0 bytes +{pid}$", stat, re.MULTILINE)
    assert re.search(rf"^ +{pid}  python\S* hold.py file_descriptor$", stat, re.MULTILINE)
    assert stat.startswith(f"{program.session().name[:8]}  manager {program.manager()}\n")
    assert re.search(rf"manager {program.manager()}; 7.6 MiB in use, segments: 1, processes: 1", program.report())


def test_a_killed_manager_is_reported_missing(program: Program) -> None:
    manager = program.manager()
    os.kill(manager, signal.SIGKILL)
    assert until(lambda: ended(manager), 20)
    session = program.session()
    assert (session.alive, session.manager) == (True, None)
    assert health(session) == "no manager; the next process that needs one starts it"
    assert "7.6 MiB" in program.stat()


def test_a_stopped_manager_is_named_with_the_remedy(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = program.manager()
    os.kill(manager, signal.SIGSTOP)
    try:
        wait_until(manager, "T")
        monkeypatch.setenv("MPSHM_RUNTIME_DIR", program.environment["MPSHM_RUNTIME_DIR"])
        monkeypatch.setattr(mp, "list_segments", list)  # it would wait ten seconds for the manager, and list nothing
        stat()
        remedy = f"manager {manager} (it is stopped: kill -CONT {manager})"
        assert capsys.readouterr().out == f"{program.session().name[:8]}  {remedy}\nno segment could be listed\n"
    finally:
        os.kill(manager, signal.SIGCONT)


@pytest.mark.parametrize("program", ["file_system"], indirect=True)
def test_the_leftovers_of_a_crash_of_all_processes_are_named_until_the_next_program_removes_them(
    program: Program, tmp_path: Path
) -> None:
    manager = program.manager()
    folder = tmp_path / f"mpshm-{os.geteuid()}"
    links = [os.readlink(link) for link in Path(f"/proc/{manager}/fd").iterdir()]
    names = {Path(link).name for link in links if link.startswith("/dev/shm/mpshm-")}
    assert len(names) == 1
    assert names.isdisjoint(_sessions.leftover_names())
    os.kill(manager, signal.SIGSTOP)
    program.end()
    os.kill(manager, signal.SIGKILL)
    assert until(lambda: ended(manager), 20)
    session = program.session()
    assert (session.alive, session.manager) == (False, None)
    assert "left behind" in health(session)
    assert names <= set(_sessions.leftover_names())
    # The report shares an array of its own to see that this works, and looks before it does.
    found = program.report().partition("shared now")[2]
    assert f"{session.name[:8]}              left behind by a crash of all its processes" in found
    assert min(names) in found
    succeeded(run_python("-c", "import mp_all; mp_all.shared.ones(1)", **program.environment))
    assert _sessions.sessions(folder) == []
    assert names.isdisjoint(_sessions.leftover_names())


def test_the_limits_of_a_container_are_those_of_all_its_groups(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "pod" / "box"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1073741824\n")
    (group / "memory.current").write_text("536870912\n")
    (group / "cpu.max").write_text("150000 100000\n")
    (group.parent / "memory.max").write_text("max\n")
    (group.parent / "pids.max").write_text("100\n")
    (group.parent / "pids.current").write_text("7\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/box\n")
    assert list(_limits.cgroup_limits(tmp_path / "fs", own)) == [
        "memory 512.0 MiB used of 1.0 GiB",
        "1.5 processors",
        "7 of 100 processes and threads",
    ]


def test_no_container_has_no_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    assert list(_limits.cgroup_limits(tmp_path, tmp_path / "cgroup")) == []
    assert list(_limits.cgroup_limits(tmp_path, tmp_path / "missing")) == []


def test_limits_of_control_groups_of_version_1_are_found_at_every_level(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n")
    for name, limit, use in [("", 2**63 - 4096, 1), ("x", 3 << 30, 1 << 30), ("x/y", 1 << 30, 1 << 20)]:
        folder = tmp_path / "fs" / "memory" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{use}\n")
    assert list(_limits.cgroup_limits(tmp_path / "fs", own)) == [
        "memory 1.0 MiB used of 1.0 GiB",
        "memory 1.0 GiB used of 3.0 GiB",
    ]


def test_a_reader_that_has_seen_enough_causes_no_traceback() -> None:
    shown = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m mp_all | head -1"], capture_output=True, text=True, timeout=60
    )
    assert (shown.stdout, shown.stderr) == ("versions\n", "")


def test_a_message_timeout_is_shown() -> None:
    assert "0.5 s after they are sent" in succeeded(run_python("-m", "mp_all", MP_MESSAGE_TIMEOUT="0.5"))
