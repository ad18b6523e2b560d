"""`mp_all.memory_report()`, and `python -m mp_all top` and `stat`, which show it."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import ended
from support.scripts import run_python, run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_all import _sessions, _top

NBYTES = 400_000
SEND = """
    import os, signal, sys, time
    import numpy as np
    import mp_all as mp

    def produce(queue, ready):
        queue.put(np.ones(50_000))
        put = time.monotonic()  # the clock of the ages ticks each 4 ms or so: neither is the older one within a tick
        while time.monotonic() < put + 0.05:
            pass
        queue.put(np.ones(50_000))
        queue.close()
        queue.join_thread()
        ready.put(os.getpid())

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        queue, ready = ctx.Queue(), ctx.SimpleQueue()
        held = mp.shared.zeros(100_000)
        child = ctx.Process(target=produce, args=(queue, ready))
        child.start()
        pid = ready.get()
        child.join()
        print(pid, flush=True)
        sys.stdin.read()
        queue.get(); queue.get()
        print("received", flush=True)
        sys.stdin.close()
        signal.pause()
"""


class Sender:
    """A program whose child has sent two arrays that nobody has received, and has ended."""

    def __init__(self, folder: Path, start_method: str, **environment: str) -> None:
        self.folder = {"MPSHM_RUNTIME_DIR": str(folder)}
        path = folder / "program.py"
        path.write_text("\n".join(line.removeprefix("    ") for line in SEND.splitlines()))
        self.process = subprocess.Popen(
            [sys.executable, str(path), start_method],
            env=os.environ | self.folder | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())
        assert until(lambda: ended(self.child), 20)
        # The reaper notices the child's end a moment after its parent.
        assert until(lambda: not self.of(self.child)["attached"], 20)  # type: ignore[index]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(succeeded(run_python("-m", "mp_all", "stat", "--json", **self.folder)))
        return report

    def of(self, pid: int) -> dict[str, Any] | None:
        return next((process for process in self.report()["processes"] if process["pid"] == pid), None)

    def receive(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.readline() == "received\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def sender(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sender]:
    """
    Start the program under the given environment, and end it after the test.
    """
    method, environment = getattr(request, "param", ("spawn", {}))
    sender = Sender(tmp_path, method, **environment)
    yield sender
    sender.end()


BOTH = [("spawn", {"MP_SHARING_STRATEGY": name}) for name in ("file_descriptor", "file_system")]


@pytest.mark.parametrize("sender", BOTH, indirect=True)
def test_a_report_has_what_a_process_holds_and_who_sent_what_nobody_received(sender: Sender) -> None:
    report = sender.report()
    (session,) = report["sessions"]
    assert (session["alive"], session["processes"], session["manager_restarts"]) == (True, 1, 0)
    assert session["manager"] is not None
    parent, child = sender.of(sender.process.pid), sender.of(sender.child)
    assert parent is not None and child is not None
    assert (parent["held_bytes"], parent["held_blocks"], parent["oldest"]) == (800_000, 1, None)
    assert re.match(r"python\S* .*program.py", parent["command"])
    assert (child["held_bytes"], child["in_flight_bytes"], child["in_flight_blocks"]) == (0, 2 * NBYTES, 2)
    assert child["command"] == ""
    before = child["oldest"]
    assert (before["bytes"], before["line"]) == (NBYTES, None)
    assert 0 < before["seconds"] < 120
    later = sender.of(sender.child)
    assert later is not None and later["oldest"]["seconds"] > before["seconds"]
    sender.receive()
    assert until(lambda: sender.of(sender.child) is None, 20)


@pytest.mark.parametrize("sender", BOTH, indirect=True, ids=lambda param: param[1]["MP_SHARING_STRATEGY"])
def test_the_unread_messages_of_each_queue_are_counted_from_outside(sender: Sender) -> None:
    def unread() -> list[int]:
        channels = sender.report()["channels"]
        assert {tuple(each["pids"]) for each in channels} == {(sender.process.pid,)}
        return sorted(each["unread"] for each in channels)

    assert unread() == [0, 2]  # of `ready` and of `queue`
    view = succeeded(run_python("-m", "mp_all", "top", "--count", "1", **sender.folder))
    found = re.search(r"unread messages: 2, (\d+) bytes, in a pipe or queue of processes (\d+)\n$", view)
    assert found is not None, view
    assert 16 < int(found[1]) < 1000  # handles; the arrays are elsewhere
    assert int(found[2]) == sender.process.pid
    sender.receive()
    assert unread() == [0, 0]
    view = succeeded(run_python("-m", "mp_all", "top", "--count", "1", **sender.folder))
    assert "unread messages" not in view


TRACED = [(method, {"MP_TRACE": "1"}) for method in mp.get_all_start_methods()]


@pytest.mark.parametrize("sender", TRACED, indirect=True, ids=lambda param: param[0])
def test_the_line_that_put_the_oldest_message_is_named_with_mp_trace(sender: Sender) -> None:
    child = sender.of(sender.child)
    assert child is not None
    assert re.fullmatch(r"produce \(\S*program.py:7\)", child["oldest"]["line"])
    view = succeeded(run_python("-m", "mp_all", "top", "--count", "1", **sender.folder))
    assert re.search(rf"oldest unread: 390.6 KiB, sent .* by process {sender.child} in produce \(.*:7\)", view)


def test_a_traced_program_sends_as_before_through_every_channel(tmp_path: Path) -> None:
    text = """
        import threading
        import numpy as np
        import mp_all as mp
        from concurrent.futures import ProcessPoolExecutor as Standard

        def double(a):
            return 2 * a

        def echo(connection, queue):
            connection.send(connection.recv())
            queue.put(queue.get(timeout=50))

        if __name__ == "__main__":
            a = np.arange(50_000)
            with mp.Pool(2) as pool:
                assert (pool.map(double, [a, a])[1] == 2 * a).all()
            with Standard(1) as executor:
                assert (executor.submit(double, a).result(50) == 2 * a).all()
                try:
                    executor.submit(threading.Lock().locked).result(50)
                    raise SystemExit("a lock was pickled")
                except TypeError:
                    pass
            here, there = mp.Pipe()
            queue = mp.Queue()
            child = mp.Process(target=echo, args=(there, queue))
            child.start()
            here.send(a)
            assert (here.recv() == a).all()
            for same in (a, a, 1, 1):
                queue.put(same)
            child.join(50)
            assert sum(np.size(queue.get(timeout=50)) for _ in range(4)) == 100_002
            from mp_core.messages.trace import _waiting
            print(len(_waiting._lines), mp.memory_stats()["in_flight_bytes"])
        """
    assert succeeded(run_script(tmp_path, text, MP_TRACE="1")) == "0 0\n"


def test_a_report_of_this_process_counts_what_waits_in_its_queues() -> None:
    queue: Any = mp.Queue(5)
    for number in range(3):
        queue.put(number)
    (own,) = [each for each in mp.memory_report()["queues"] if each["maxsize"] == 5]
    assert own == {"kind": "Queue", "pid": os.getpid(), "depth": 3, "maxsize": 5}
    for _ in range(3):
        queue.get(timeout=20)
    queue.close()
    queue.join_thread()


def test_the_view_names_five_queues_and_counts_the_others() -> None:
    channels = [{"pids": [7, 8], "unread": unread, "bytes": 16 * unread} for unread in (0, 1, 2, 3, 4, 5, 6, 700)]
    lines = _top.full_channels({"channels": channels})
    assert lines[0] == "unread messages: 700, 10.9 KiB, in a pipe or queue of processes 7 8"
    assert len(lines) == 6
    assert lines[5] == "unread messages in 2 more pipes or queues"


def test_a_report_without_sessions_is_empty(tmp_path: Path) -> None:
    folder = {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    report = json.loads(succeeded(run_python("-m", "mp_all", "stat", "--json", **folder)))
    assert (report["sessions"], report["processes"], report["channels"]) == ([], [], [])
    view = succeeded(run_python("-m", "mp_all", "top", "--count", "1", **folder))
    assert view == "no process of this user shares memory now\n"


def test_the_view_shows_the_change_since_it_began(sender: Sender) -> None:
    change = _top.Change()
    report = sender.report()
    session = report["sessions"][0]["id"]
    assert {row[2] for row in _top.rows(report, session, change)} == {""}
    for process in report["processes"]:
        process["held_bytes"] += 3 * 2**20 if process["attached"] else -1024
    assert {row[2] for row in _top.rows(report, session, change)} == {"+3.0 MiB", "-1.0 KiB"}


def test_the_view_is_drawn_with_rich_on_a_terminal_and_as_text_without_it(sender: Sender, tmp_path: Path) -> None:
    # A folder in front of the path hides rich, as if it were not installed.
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('hidden')")
    command = f"stty cols 110; {sys.executable} -m mp_all top --count 1"
    for hidden in ("", str(tmp_path)):
        done = subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            env=os.environ | sender.folder | {"PYTHONPATH": hidden, "TERM": "xterm", "COLUMNS": "110"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
        assert ("\x1b[?25l" in done.stdout) == (not hidden)  # rich hides the cursor
        text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", done.stdout)
        assert f"session {sender.report()['sessions'][0]['id'][:8]}  processes: 1" in text
        assert re.search(rf"{sender.child} +0 bytes +0 +781.2 KiB +[\d.]+ s +\(has ended", text), text
        assert "MP_TRACE=1 in its environment shows the line" in text


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("options", [[], ["--plain"]])
def test_a_signal_ends_the_view_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, options: list[str], signum: signal.Signals
) -> None:
    ours, theirs = os.openpty()
    try:
        before = termios.tcgetattr(theirs)
        view = subprocess.Popen(
            [sys.executable, "-m", "mp_all", "top", *options],
            env=os.environ | {"MPSHM_RUNTIME_DIR": str(tmp_path), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            start_new_session=True,
        )
        try:
            shown = b""
            while b"no process of this user" not in shown:
                shown += os.read(ours, 4096)
            assert termios.tcgetattr(theirs)[3] != before[3]
            view.send_signal(signum)
            assert view.wait(20) == (0 if signum == signal.SIGINT else 128 + signum)
        finally:
            view.kill()
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_view_runs_with_a_closed_standard_output(tmp_path: Path) -> None:
    command = f"{sys.executable} -m mp_all top --count 1 >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_numbers_are_served_to_prometheus(sender: Sender) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "mp_all", "stat", "--prometheus", "0"],
        env=os.environ | sender.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=20) as answer:
            text = answer.read().decode()
        session = sender.report()["sessions"][0]["id"][:8]
        assert f'mp_all_in_flight_bytes{{pid="{sender.child}",session="{session}"}} {float(2 * NBYTES)}' in text
        (held,) = re.findall(rf'mp_all_held_bytes{{pid="{sender.process.pid}",session="{session}"}} (\S+)', text)
        assert float(held) == 800_000
        assert f'mp_all_session_manager_up{{session="{session}"}} 1.0' in text
        (age,) = re.findall(rf'mp_all_oldest_message_seconds{{pid="{sender.child}".*}} (\S+)', text)
        assert float(age) > 0
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        server.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prometheus", "http"], "takes PORT or HOST:PORT, not 'http'"),
        (["--prometheus", "99999"], "takes PORT or HOST:PORT, not '99999'"),
        (["--prometheus", "192.0.2.1:0"], "cannot listen at 192.0.2.1:0"),
        (["--json", "--prometheus", "0"], "not allowed with"),
    ],
)
def test_stat_refuses_what_it_cannot_do(arguments: list[str], words: str) -> None:
    done = run_python("-m", "mp_all", "stat", *arguments)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("interval", ["nan", "inf", "1e99", "-1", "0"])
def test_an_interval_that_cannot_be_waited_for_is_refused_before_the_first_view(interval: str) -> None:
    done = run_python("-m", "mp_all", "top", "--count", "2", "--interval", interval)
    assert (done.returncode, done.stdout) == (2, "")
    reason = "--interval must be more than 0" if interval == "0" else f"--interval: {interval} is no time to wait"
    assert reason in done.stderr.splitlines()[-1]


def test_prometheus_without_its_package_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('hidden')")
    done = run_python("-m", "mp_all", "stat", "--prometheus", "0", PYTHONPATH=str(tmp_path))
    assert (done.returncode, "pip install 'mp-all[prometheus]'" in done.stderr) == (1, True)


# The manager writes to the control file, too: the limit of the cache, and that it sleeps, a second after it began.
CACHE_UNWATCHED = slice(80, 84)  # control_file.h


@pytest.mark.parametrize("sender", [("spawn", {"MP_CACHE_BYTES": "0"})], indirect=True, ids=["no_cache"])
def test_a_look_from_outside_leaves_the_control_file_as_it_was(sender: Sender, tmp_path: Path) -> None:
    (control,) = tmp_path.glob("mpshm-*/*/control")
    assert until(lambda: any(control.read_bytes()[CACHE_UNWATCHED]), 20), "the manager does not come to rest"
    before = control.read_bytes()
    succeeded(run_python("-m", "mp_all", "top", "--count", "3", "--interval", "0.01", **sender.folder))
    assert control.read_bytes() == before


def test_an_array_that_is_received_is_in_flight_no_more() -> None:
    receiver, connection = mp.Pipe(duplex=False)

    def in_flight() -> int:
        return sum(p["in_flight_bytes"] for p in mp.memory_report()["processes"] if p["pid"] == os.getpid())

    before = in_flight()
    connection.send(np.ones(NBYTES // 8))
    assert in_flight() == before + NBYTES
    receiver.recv()
    assert in_flight() == before
    for end in (receiver, connection):
        end.close()


def test_a_silent_connection_holds_up_no_scrape(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    command = [sys.executable, "-m", "mp_all", "stat", "--prometheus", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
            with socket.create_connection((host, int(port))), urllib.request.urlopen(url, timeout=30) as answer:
                assert b"mp_all_session_processes" in answer.read()
        finally:
            server.kill()


def test_named_arrays_are_shown_with_who_has_them_until_they_are_unlinked(tmp_path: Path) -> None:
    folder = {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    name = f"seen by top {os.getpid()}"
    array = mp.shared.named(name, 1000, create=True)
    try:
        for command in ("top", "stat"):
            options = ["--count", "1"] if command == "top" else []
            view = succeeded(run_python("-m", "mp_all", command, *options, **folder))
            assert f"named array {name!r}: 11.8 KiB, in processes {os.getpid()}\n" in view
        del array
        gc.collect()
        (found,) = [each for each in mp.memory_report()["named"] if each["name"] == name]
        assert found["pids"] == []
    finally:
        mp.shared.unlink(name)
    assert [each for each in mp.memory_report()["named"] if each["name"] == name] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_named_array_of_another_user_is_not_taken_for_ours() -> None:
    name = f"of another user {os.getpid()}"
    mp.shared.named(name, 1000, create=True)
    try:
        (path,) = [path for path in Path("/dev/shm").glob("mp_all.*") if path.name.endswith(name)]
        os.chown(path, 65534, 65534)
        assert [each for each in mp.memory_report()["named"] if each["name"] == name] == []
        os.chown(path, os.geteuid(), os.getegid())
    finally:
        mp.shared.unlink(name)


def test_q_ends_the_view_and_the_terminal_is_as_before() -> None:
    command = f"stty -g; {sys.executable} -m mp_all top --interval 60; stty -g"
    with subprocess.Popen(
        ["script", "-qec", command, "/dev/null"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as view:
        assert view.stdin is not None and view.stdout is not None
        before = view.stdout.readline()
        while "shared memory now" not in (line := view.stdout.readline()) and "session" not in line:
            assert line
        view.stdin.write("xq")
        view.stdin.flush()
        after, _ = view.communicate(timeout=30)
    assert after.splitlines()[-1].endswith(before.rstrip())  # behind the sequence that shows the cursor again


def test_a_child_is_named_after_its_parent() -> None:
    context = mp.get_context("spawn")
    with context.Pool(1) as pool:
        pid = pool.apply(os.getpid)
        assert _sessions.command_of(pid).startswith(f"child of {os.getpid()}: ")
