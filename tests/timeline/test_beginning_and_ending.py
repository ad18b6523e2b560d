"""A timeline that cannot be recorded is an error at its start; after that, nothing about it ends the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import events_in, spans
from support.scripts import run_python, run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_core.sharing import backend


def folders(path: Path) -> list[Path]:
    return sorted(path.glob("*.events"))


@pytest.mark.parametrize("path", ["run.txt", "run", b"run.html"])
def test_a_path_with_another_ending_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"must end in \.html"):
        mp.timeline(path)


@pytest.mark.parametrize("events", [0, -1, 1 << 27, 1.5, "3", None])
def test_a_number_of_events_that_is_none_is_refused(events: object) -> None:
    with pytest.raises(ValueError, match="events of each process"):
        mp.timeline("run.html", events=events)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_an_error_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not there: make it first"), mp.timeline(tmp_path / "no" / "a.html"):
        raise AssertionError("the block has begun")


def test_a_nested_timeline_is_an_error_that_names_the_first_and_leaves_it_whole(tmp_path: Path) -> None:
    with mp.timeline(tmp_path / "first.json"):  # noqa: SIM117 (the error is of the inner one)
        with pytest.raises(RuntimeError, match=r"first\.json"), mp.timeline(tmp_path / "second.json"):
            raise AssertionError("the block has begun")
    assert [path.name for path in tmp_path.iterdir()] == ["first.json"]
    assert not backend.recorders


def test_a_full_disk_is_an_error_before_the_run_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"), mp.timeline(tmp_path / "run.html"):
        raise AssertionError("the block has begun")
    assert list(tmp_path.iterdir()) == []
    assert not backend.recorders and "MP_TIMELINE_RUN" not in os.environ


def test_a_report_that_cannot_be_written_is_a_warning_and_its_events_stay_to_be_recovered(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    with pytest.warns(RuntimeWarning, match="mp-all timeline recover"), mp.timeline(target):
        target.mkdir()  # nothing replaces a folder by a file
    (folder,) = folders(tmp_path)
    target.rmdir()
    done = run_python("-m", "mp_all", "timeline", "recover", str(folder))
    assert succeeded(done).strip() == str(target)
    assert spans(events_in(target), "process")


def test_an_exception_leaves_the_block_and_the_report_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError), mp.timeline(tmp_path / "run.json"):
        raise KeyError(1)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_older_report_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("old")
    with mp.timeline(tmp_path / "run.json"):
        pass
    assert spans(events_in(tmp_path / "run.json"), "process")


def test_a_killed_owner_leaves_what_it_had_for_recover(tmp_path: Path) -> None:
    program = """
        import os, time
        import mp_all as mp

        def child(pipe):
            queue = mp.SimpleQueue()
            queue.put(1)
            queue.get()
            pipe.send(os.getpid())
            time.sleep(60)

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                ours, theirs = mp.Pipe()
                mp.Process(target=child, args=(theirs,), name="worker", daemon=True).start()
                print(ours.recv(), flush=True)
                time.sleep(60)
    """
    path = tmp_path / "program.py"
    path.write_text("\n".join(line[8:] for line in program.splitlines()))
    with subprocess.Popen(
        [sys.executable, str(path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        # nobody is left who would remove the session's folder
        env={**os.environ, "MPSHM_RUNTIME_DIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        for pid in (int(process.stdout.readline()), process.pid):
            os.kill(pid, signal.SIGKILL)
    (folder,) = folders(tmp_path)
    assert succeeded(run_python("-m", "mp_all", "timeline", "recover", str(folder), str(tmp_path / "saved.json")))
    events = events_in(tmp_path / "saved.json")
    assert {"MainProcess", "worker"} <= {span["name"] for span in spans(events, "process")}
    assert [event for event in events if event["ph"] == "f"]


def test_recover_says_what_is_no_folder_of_events(tmp_path: Path) -> None:
    done = run_python("-m", "mp_all", "timeline", "recover", str(tmp_path))
    assert done.returncode == 2
    assert "is no folder of events" in done.stderr


def test_a_forked_child_that_leaves_the_block_writes_no_report(tmp_path: Path) -> None:
    program = """
        import os
        import mp_all as mp

        pid = 0
        with mp.timeline("run.json"):
            pid = os.fork()
        if pid == 0:
            os._exit(os.path.exists("run.json"))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists("run.json"))
    """
    child_first = program.replace(
        "pid = os.fork()\n", "pid = os.fork()\n            pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
    )
    assert succeeded(run_script(tmp_path, child_first, PYTHONWARNINGS="ignore")) == "0 True\n"
    assert folders(tmp_path) == []


def test_children_that_outlive_the_timeline_go_on(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys
        import mp_all as mp

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with mp.timeline("run.json"):
                pool = context.Pool(1)
                pool.apply(double, (1,))
            with pool:
                print(pool.map(double, range(5)))
            with context.Pool(1) as later:
                print(later.apply(double, (3,)))
            with mp.timeline("again.json"), context.Pool(1) as later:
                print(later.apply(double, (4,)))
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "[0, 2, 4, 6, 8]\n6\n8\n"
    for name in ("run.json", "again.json"):
        assert len(spans(events_in(tmp_path / name), "task")) == 1
    assert folders(tmp_path) == []


PLAIN = """
    import multiprocessing

    def double(x):
        return 2 * x

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, range(3)))
"""


def test_the_environment_and_the_command_record_an_unchanged_program(tmp_path: Path) -> None:
    done = run_script(tmp_path, PLAIN, MP_TIMELINE=str(tmp_path / "run.json"), MP_ALL="1")
    assert succeeded(done) == "[0, 2, 4]\n"
    assert len(spans(events_in(tmp_path / "run.json"), "task")) == 3
    for options in (["--timeline", "two.json"], ["--timeline=two.json"]):
        done = run_python("-m", "mp_all", "run", *options, "--", "program.py", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "[0, 2, 4]\n")
        path, headline, *_ = done.stderr.splitlines()
        assert path == str(tmp_path / "two.json") and headline.startswith("Tasks add up to ")
        assert len(spans(events_in(tmp_path / "two.json"), "task")) == 3
        (tmp_path / "two.json").unlink()
    assert folders(tmp_path) == []


def test_a_wrong_path_in_the_environment_or_a_command_is_an_error_before_the_run(tmp_path: Path) -> None:
    done = run_python("-c", "import mp_all; print('began')", MP_TIMELINE=str(tmp_path / "no" / "run.html"))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("MP_TIMELINE: ") and len(done.stderr.splitlines()) == 1
    for switch in ("0", "1"):  # a folder in which no file can be made, also for root
        done = run_python("-c", "import mp_all", MP_TIMELINE="/proc/run.html", MP_ALL=switch)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1) and "/proc/run.html" in done.stderr
    done = run_python("-m", "mp_spawn", "--timeline", "/proc/run.html", __file__)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "/proc/run.html" in done.stderr
    for command in (["-m", "mp_all", "run"], ["-m", "mp_spawn"]):
        done = run_python(*command, "--timeline", "run.txt", __file__, cwd=tmp_path)
        assert done.returncode == 2
        assert "must end in .html" in done.stderr
    assert run_python("-m", "mp_all", "run").returncode == 2
    assert run_python("-m", "mp_all", "run", "no_such_file.py").returncode == 2


def test_mp_spawn_records_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import mp_all as mp\nqueue = mp.SimpleQueue()\nqueue.put(1)\nqueue.get()\n")
    succeeded(run_python("-m", "mp_spawn", "-n", "2", "--timeline", "run.json", "rank.py", cwd=tmp_path))
    names = {span["name"] for span in spans(events_in(tmp_path / "run.json"), "process")}
    assert {"rank 0", "rank 1"} <= names


def test_a_program_that_never_imports_multiprocessing_has_a_timeline_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('done')\n")
    done = run_python("-m", "mp_all", "run", "--timeline", "run.html", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "The run took" in done.stderr
    assert (tmp_path / "run.html").stat().st_size > 1000


def test_without_a_timeline_no_module_of_it_is_imported_and_nothing_is_recorded(
    tmp_path: Path, start_method: str
) -> None:
    program = """
        import sys
        import mp_all as mp

        def names(_):
            return [name for name in sys.modules if "timeline" in name]

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with context.Pool(1) as pool:
                print(pool.map(names, [0]), names(0))
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "[[]] []\n"


def test_a_child_on_a_full_disk_warns_and_runs(tmp_path: Path) -> None:
    program = """
        import os
        import mp_all as mp

        def child(queue):
            queue.put(1)

        def full(fd, start, nbytes):
            raise OSError(28, "No space left on device")

        with mp.timeline("run.json"):
            os.posix_fallocate = full
            queue = mp.get_context("fork").Queue()
            process = mp.get_context("fork").Process(target=child, args=(queue,))
            process.start()
            print(queue.get())
            process.join()
    """
    done = run_script(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "is not in the timeline: No space left on device" in done.stderr
    assert until(lambda: (tmp_path / "run.json").exists())


@pytest.mark.parametrize(
    ("error", "code"), [("KeyboardInterrupt", -signal.SIGINT), ("SystemExit(7)", 7), ("OSError", 1)]
)
def test_a_recorded_program_ends_as_it_would_without(tmp_path: Path, error: str, code: int) -> None:
    program = f"import mp_all; raise {error}"
    own = os.environ | {"MP_TIMELINE": str(tmp_path / "run.html"), "MP_TIMELINE_PRINT": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "run.html").exists()
