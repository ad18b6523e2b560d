"""The launcher passes the ranks' output on as it came, and writes into no file of theirs."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import ended as has_ended
from support.scripts import run_script
from support.waiting import until

from mp_spawn import run
from mp_spawn.output.destinations import Prefix

BOTH = pytest.mark.parametrize("mode", ["prefix", "capture"])


def start(folder: Path, text: str, *options: str, **more: Any) -> subprocess.Popen[bytes]:
    """
    Start ``mp-spawn`` with a script.
    """
    (folder / "script.py").write_text(textwrap.dedent(text))
    environment = os.environ | more.pop("env", {})
    command = [sys.executable, "-m", "mp_spawn", *options, str(folder / "script.py")]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, **outputs)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def written_pids(folder: Path, count: int) -> list[int]:
    """
    Wait until so many ranks have written their pids to a file each; return the pids.
    """
    files = [folder / str(rank) for rank in range(count)]
    assert until(lambda: all(file.exists() and file.read_text() for file in files), 60)
    return [int(file.read_text()) for file in files]


def full_pipe() -> tuple[int, int, int]:
    """
    Return the two ends of a pipe in which no byte has room, and how many are in it.
    """
    read, write = os.pipe()
    filled = 0
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    return read, write, filled


@BOTH
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_launchers_output_cannot_encode_are_not_lost(
    tmp_path: Path, mode: str, encoding: str
) -> None:
    text = """
        import os, sys
        for number in range(101):
            print(os.environ["RANK"], number, "naïve 漢字 \\N{snowman}")
        print("auf Wiedersehen, Grüße", file=sys.stderr)
    """
    code, out, err = ended(start(tmp_path, text, "-n", "2", "--output", mode, env={"PYTHONIOENCODING": encoding}))
    assert code == 0, err
    lines = out.decode().splitlines()
    assert len(lines) == 202
    assert all(line.endswith("naïve 漢字 ☃") for line in lines)
    assert err.decode().count("Grüße") == 2


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_run_brings_such_characters_too(tmp_path: Path, encoding: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import mp_spawn\n\ndef say(rank):\n    print('naïve ☃')\n\n"
        "if __name__ == '__main__':\n    mp_spawn.run(say, (), 2, output='prefix')\n    print('end')\n",
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    out = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, timeout=60, check=True)
    assert sorted(out.stdout.decode().splitlines()) == ["[rank 0] naïve ☃", "[rank 1] naïve ☃", "end"]


def test_binary_output_is_passed_on_byte_by_byte(tmp_path: Path) -> None:
    text = """
        import os
        for _ in range(40):
            os.write(1, bytes(range(256)) * 4 + b"\\r\\r\\n\\n")
        os.write(1, bytes(range(200)))
    """
    code, out, err = ended(start(tmp_path, text, "-n", "1"))
    assert code == 0, err
    written = (bytes(range(256)) * 4 + b"\r\r\n\n") * 40 + bytes(range(200))
    assert out.replace(b"[rank 0] ", b"") == written + b"\n"


def test_a_progress_line_is_shown_when_it_moves(tmp_path: Path) -> None:
    text = """
        import os, sys
        for number in range(3):
            print(end=f"\\r{number} of 3", flush=True)
            with open("go") as pipe:
                pipe.read()
        print()
    """
    os.mkfifo(tmp_path / "go")
    process = start(tmp_path, text, "-n", "1")
    assert process.stdout is not None
    shown = b""
    for number in range(3):
        while f"\r[rank 0] {number} of 3".encode() not in shown:
            part = os.read(process.stdout.fileno(), 4096)
            assert part, shown
            shown += part
        (tmp_path / "go").write_text("on")
    code, out, err = ended(process)
    assert (code, out) == (0, b"\n"), err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_of_another_rank_does_not_cut_a_progress_line(tmp_path: Path, stream: str) -> None:
    text = f"""
        import os, sys, time
        if os.environ["RANK"] == "0":
            print(end="\\rhalf", flush=True, file=sys.{stream})
            open("half", "w").close()
            while not os.path.exists("other"):
                time.sleep(0.01)
            time.sleep(0.3)
            print("\\rwhole", file=sys.{stream})
        else:
            while not os.path.exists("half"):
                time.sleep(0.01)
            time.sleep(0.3)
            print("a line")
            open("other", "w").close()
    """
    process = start(tmp_path, text, "-n", "2", stderr=subprocess.STDOUT)  # as on a terminal
    code, out, _ = ended(process)
    assert code == 0, out
    assert b"half\n[rank 1] a line\n" in out
    assert out.endswith(b"whole\n")


def test_a_text_takes_the_place_of_the_progress_line_of_its_own_rank(tmp_path: Path) -> None:
    text = """
        import os, sys, time
        for number in range(3):
            sys.stderr.write("\\r50%")
            sys.stderr.flush()
            time.sleep(0.05)  # the two streams are two pipes
            sys.stderr.write("\\r   \\r")
            sys.stderr.flush()
            time.sleep(0.05)
            print("text", number, flush=True)
            time.sleep(0.05)
    """
    code, out, _ = ended(start(tmp_path, text, "-n", "1", stderr=subprocess.STDOUT))
    assert code == 0, out
    assert out.count(b"   \r[rank 0] text ") == 3, out  # and no end of a line in between


def test_a_reader_that_has_gone_is_named_once_and_the_ranks_go_on(tmp_path: Path) -> None:
    text = """
        import sys
        for number in range(20_000):
            print(number)
        open("finished", "w").close()
        sys.exit(7)
    """
    process = start(tmp_path, text, "-n", "1")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    code, _, err = ended(process)
    assert code == 7
    assert err.count(b"is lost from here on") == 1
    assert b"Broken pipe" in err
    assert (tmp_path / "finished").exists()
    assert b"Traceback" not in err


@BOTH
def test_a_full_disk_is_named_and_the_exit_code_is_the_ranks(tmp_path: Path, mode: str) -> None:
    with open("/dev/full", "wb") as full:
        process = start(tmp_path, "print('lost')\nraise SystemExit(0)\n", "-n", "2", "--output", mode, stdout=full)
        code, _, err = ended(process)
    assert code == 0, err
    assert b"No space left" in err
    assert b"Traceback" not in err


def test_a_reader_that_does_not_read_keeps_no_signal_from_ending_the_job(tmp_path: Path) -> None:
    text = """
        import os
        while True:
            os.write(1, b"x" * 4095 + b"\\n")
            open(os.environ["RANK"], "w").close()
    """
    nobody_reads, output = os.pipe()
    process = start(tmp_path, text, "-n", "2", "--grace-period", "1", stdout=output)
    os.close(output)
    try:
        assert until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), timeout=60)
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
    finally:
        os.close(nobody_reads)
    assert code == 128 + signal.SIGTERM, err
    assert b"nobody reads it" in err


@BOTH
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_when_its_ranks_have_ended_and_nobody_reads(
    tmp_path: Path, mode: str, signum: signal.Signals
) -> None:
    text = """
        import os
        os.write(1, b"x" * 40_000)
        open(os.environ["RANK"], "w").write(str(os.getpid()))
    """
    nobody_reads, output = os.pipe()
    process = start(tmp_path, text, "-n", "2", "--output", mode, "--grace-period", "1", stdout=output)
    os.close(output)
    try:
        pids = written_pids(tmp_path, 2)
        assert until(lambda: all(map(has_ended, pids)), 60)
        process.send_signal(signum)
        code, _, err = ended(process)
    finally:
        os.close(nobody_reads)
    assert code == 128 + signum, err
    assert err == b"the rest of the output of the ranks is lost: nobody reads it\n"


def test_a_failure_ends_the_other_ranks_although_nobody_reads_of_it(tmp_path: Path) -> None:
    text = """
        import os, time
        rank = os.environ["RANK"]
        open(rank, "w").write(str(os.getpid()))
        if rank == "0":
            while not os.path.exists("go"):
                time.sleep(0.01)
            raise SystemExit(7)
        time.sleep(300)
    """
    nobody_reads, output, _ = full_pipe()
    process = start(tmp_path, text, "-n", "2", "--grace-period", "1", stderr=output)
    os.close(output)
    try:
        pids = written_pids(tmp_path, 2)
        (tmp_path / "go").touch()
        assert until(lambda: all(map(has_ended, pids)), 60)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 7
    finally:
        os.close(nobody_reads)


def test_messages_that_are_read_late_all_come_in_order(tmp_path: Path) -> None:
    text = """
        open("starts", "a").write("x")
        raise SystemExit(7)
    """
    read, output, filled = full_pipe()
    process = start(tmp_path, text, "-n", "1", "--max-restarts", "3", stderr=output)
    os.close(output)
    with os.fdopen(read, "rb") as file:
        assert until(lambda: (tmp_path / "starts").exists() and (tmp_path / "starts").read_text() == "xxxx", 60)
        lines = file.read()[filled:].splitlines()
    assert ended(process)[0] == 7
    assert [line[-7:] for line in lines[:3]] == [b"1 of 3)", b"2 of 3)", b"3 of 3)"], lines
    assert len(lines) == 5, lines


def test_a_log_file_that_cannot_be_written_is_named_once_and_has_no_gap(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    text = """
        for number in range(300):
            print(f"{number:050}", flush=True)
    """
    options = ("-n", "2", "--log-dir", str(tmp_path / "logs"), "--tee")
    code, out, err = ended(start(tmp_path, text, *options, preexec_fn=limit))
    assert code == 0, err
    assert out.count(b"\n") == 600
    assert err.count(b"cannot be written") == 2, err
    whole = "".join(f"{number:050}\n" for number in range(300))
    for rank in range(2):
        written = (tmp_path / "logs" / f"rank-{rank}.out").read_text()
        assert 0 < len(written) <= 4096
        assert whole.startswith(written)


CLOSES_ALL = """
    import os, sys
    os.closerange(3, 5000)
    files = [open("file%d" % number, "w") for number in range(12)]
    for file in files:
        file.write("mine")
        file.flush()
    {end}
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ["pass", "raise LookupError('as asked')", "sys.exit('a text')", "sys.exit(256)"])
def test_no_report_is_written_into_a_file_of_a_program_that_closes_all_descriptors(
    tmp_path: Path, end: str, method: str
) -> None:
    code, _, err = ended(start(tmp_path, CLOSES_ALL.format(end=end), "-n", "1", "--start-method", method))
    assert [(tmp_path / f"file{number}").read_text() for number in range(12)] == ["mine"] * 12
    assert (code == 0) == (end == "pass"), err
    if "LookupError" in end:
        assert b"LookupError: as asked" in err


def close_all(rank: int, folder: str) -> str:
    os.closerange(3, 5000)
    with open(f"{folder}/{rank}", "w") as file:
        file.write("mine")
        return "a result" * 100_000


def test_a_result_arrives_although_its_descriptor_was_closed(start_method: str, tmp_path: Path) -> None:
    assert run(close_all, (str(tmp_path),), 2, start_method=start_method) == ["a result" * 100_000] * 2
    assert (tmp_path / "0").read_text() == "mine"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_program_ends_by_a_signal_although_nobody_reads_what_its_ranks_write(
    tmp_path: Path, signum: signal.Signals
) -> None:
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import mp_spawn

        def write(rank):
            open(str(rank), "w").close()
            for number in range(20_000):
                print("x" * 100, number)

        if __name__ == "__main__":
            mp_spawn.run(write, nprocs=2, output="prefix")
        """)
    )
    nobody_reads, output = os.pipe()
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, **streams)  # type: ignore[call-overload]
    os.close(output)
    try:
        assert until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), timeout=60)
        process.send_signal(signum)
        assert ended(process)[0] == -signum
    finally:
        os.close(nobody_reads)


def test_a_message_cuts_no_line_of_a_rank_where_both_streams_are_one_and_its_reader_is_slow(tmp_path: Path) -> None:
    text = """
        import os, sys
        for number in range(600):
            print("x" * 100, number)
        if os.environ["RANK"] == "1":
            sys.exit(3)
    """
    read, output = os.pipe()
    options = ["-n", "2", "--max-restarts", "3"]
    process = start(tmp_path, text, *options, stdout=output, stderr=output)
    os.close(output)
    lines = []
    with os.fdopen(read, "rb", buffering=4096) as file:
        for line in file:
            lines.append(line)
            if len(lines) % 40 == 0:
                time.sleep(0.02)
    assert ended(process)[0] == 3
    prefixed = [line for line in lines if line.startswith((b"[rank 0] x", b"[rank 1] x"))]
    assert len([line for line in prefixed if re.fullmatch(rb"\[rank \d\] x{100} \d+\n", line)]) == 600 * 5
    assert len(prefixed) == 600 * 5
    assert sum(b"is started again" in line and line.startswith(b"rank 1 (pid") for line in lines) == 3


def test_an_interrupted_start_of_the_thread_that_reads_leaves_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        pass

    start_thread = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start_thread(thread)
        if thread.name == "mp-spawn output":
            raise Interrupted

    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    output = Prefix()
    ends = output.ends_for(0, 0)
    assert ends is not None
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(threading.Thread, "start", interrupted)
        output.started()
    output.finish()
    assert failed == []


def test_the_command_tells_again_after_a_run_whose_messages_nobody_has_read(tmp_path: Path) -> None:
    program = """
        import os, sys, threading, time
        from mp_spawn.command.main import main

        if __name__ == "__main__":
            read, write = os.pipe()
            os.dup2(write, 2)
            fill = "import sys, time; print('x' * 200_000, file=sys.stderr); time.sleep(300)"
            first = main(["-n", "2", "--timeout", "1", "--grace-period", "1", "-c", fill])
            parts = []
            def read_all():
                while parts.append(os.read(read, 1 << 16)) or True: pass
            threading.Thread(target=read_all, daemon=True).start()
            second = main(["-n", "1", "-c", "print('fine')"])
            third = main(["-n", "1", "-c", "raise SystemExit(4)"])
            while b"exit code 4" not in b"".join(parts):
                time.sleep(0.01)
            print(first, second, third, flush=True)
            os._exit(0)
    """
    assert run_script(tmp_path, program).stdout == "[rank 0] fine\n124 0 4\n"


def test_a_record_of_the_launcher_is_told_once_also_in_a_program_with_a_handler(tmp_path: Path) -> None:
    program = """
        import logging, sys
        from mp_spawn.command.main import main

        if __name__ == "__main__":
            if sys.argv[1] == "handler":
                logging.basicConfig(format="of the program: %(message)s")
            main(["-n", "2", "-c", "import os, time; os.environ['RANK'] == '0' and 1 / 0; time.sleep(300)"])
    """
    for how, begin in (("handler", "of the program: Terminating process "), ("none", "Terminating process ")):
        lines = [line for line in run_script(tmp_path, program, how).stderr.splitlines() if "Terminating" in line]
        assert len(lines) == 1 and lines[0].startswith(begin), lines


def test_a_reader_that_comes_back_too_late_gets_whole_lines_and_the_exit_code_says_that_some_are_lost(
    tmp_path: Path,
) -> None:
    text = """
        import os, signal, sys, time

        def end(*_):
            while not os.path.exists("go"):
                time.sleep(0.01)
            sys.exit(0)

        signal.signal(signal.SIGTERM, end)
        open(os.environ["RANK"], "w").write(str(os.getpid()))
        for number in range(20_000):
            print("x" * 100, number)
    """
    read, output = os.pipe()
    process = start(tmp_path, text, "-n", "2", "--grace-period", "1", "--output", "prefix", stdout=output)
    os.close(output)
    assert process.stderr is not None
    written_pids(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    assert b"nobody reads it" in process.stderr.readline()
    with os.fdopen(read, "rb") as file:
        (tmp_path / "go").touch()
        lines = file.read().split(b"\n")
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert len(lines) > 100
    assert [line for line in lines[:-1] if not re.fullmatch(rb"\[rank \d\] x{100} \d+", line)] == []
