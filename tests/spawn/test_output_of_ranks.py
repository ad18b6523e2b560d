"""The output of ranks is complete, in whole lines, in the place that `output` names."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
import rank_functions as ranks
from support.scripts import run_script, succeeded

from mp_spawn import ProcessExitedException, run, start_processes
from mp_spawn.output import destinations as output

LINES = """
    import sys
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        mp_spawn.start_processes(
            rank_functions.write_lines, (200, 3000), 4, start_method=sys.argv[1], output=sys.argv[2]
        )
"""


def said_by(tmp_path: Path, start_method: str, mode: str, **environment: str) -> list[str]:
    """
    Return the lines that four ranks write to one pipe.
    """
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = run_script(tmp_path, LINES, start_method, mode, PYTHONPATH=path, **environment)
    return succeeded(done).splitlines()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("mode", ["inherit", "prefix"])
def test_lines_of_ranks_stay_whole(tmp_path: Path, start_method: str, mode: str, unbuffered: str) -> None:
    lines = said_by(tmp_path, start_method, mode, PYTHONUNBUFFERED=unbuffered)
    for rank in range(4):
        prefix = f"[rank {rank}] " if mode == "prefix" else ""
        assert lines.count(f"{prefix}{rank} " + str(rank) * 3000) == 200
    assert len(lines) == 800


def test_prefix_marks_both_streams_and_the_output_of_other_programs(
    start_method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start_processes(ranks.write_everywhere, nprocs=2, start_method=start_method, output="prefix")
    out, err = capfd.readouterr()
    for rank in range(2):
        assert f"[rank {rank}] printed\n" in out
        assert f"[rank {rank}] by a program\n" in out
        assert f"[rank {rank}] without an end\n" in out
        assert f"[rank {rank}] complained\n" in err


def test_the_prefix_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    said = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        output.Prefix()._write(1, "stdout", b"text\n")
        said.append(stream.getvalue())
    assert re.fullmatch("\x1b\\[\\d+m\\[rank 1\\] \x1b\\[0mtext\n", said[0])
    assert said[1] == "[rank 1] text\n"


class Tee:
    """As small as some programs make them."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        if "fail" in text:
            raise LookupError("as asked")
        self.text += text

    def flush(self) -> None: ...


def test_a_standard_output_with_write_and_flush_alone_gets_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    tee = Tee()
    monkeypatch.setattr("sys.stdout", tee)
    start_processes(print, ("hello",), 2, output="prefix")
    assert sorted(tee.text.splitlines()) == ["[rank 0] 0 hello", "[rank 1] 1 hello"]


def test_a_rank_does_not_wait_for_a_standard_output_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdout", Tee())
    start_processes(print, ("fail " * 100_000,), 2, output="prefix")
    assert "some of the stdout of rank 1 is lost" in caplog.messages


def test_captured_output_is_separate_for_each_rank(start_method: str) -> None:
    context = start_processes(ranks.write_everywhere, nprocs=2, join=False, start_method=start_method, output="capture")
    assert context is not None
    assert context.join(timeout=60)
    for captured in context.captured:
        assert sorted(captured.stdout.splitlines()) == ["by a program", "printed", "without an end"]
        assert captured.stderr == "complained\n"


def test_captured_output_is_on_the_failure(start_method: str) -> None:
    with pytest.raises(ProcessExitedException) as caught:
        run(ranks.write_and_leave, (4,), 2, start_method=start_method, output="capture")
    first = caught.value.failures[0]
    assert (first.stdout, first.stderr) == (f"rank {first.rank} leaves\n", "for good\n")


def test_much_output_does_not_block_ranks_before_join(start_method: str) -> None:
    context = start_processes(
        ranks.write_lines, (100, 10_000), 2, join=False, start_method=start_method, output="capture"
    )
    assert context is not None
    for process in context.processes:
        process.join(60)
    assert [process.exitcode for process in context.processes] == [0, 0]
    assert context.join(timeout=60)
    assert [len(captured.stdout) for captured in context.captured] == [100 * 10_003] * 2


def test_a_folder_gets_a_file_per_rank_and_stream(start_method: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):  # the second job overwrites the files
        start_processes(ranks.write_everywhere, nprocs=2, start_method=start_method, output=folder)
    assert sorted(os.listdir(folder)) == ["rank-0.err", "rank-0.out", "rank-1.err", "rank-1.out"]
    assert "printed\n" in (folder / "rank-1.out").read_text()
    assert (folder / "rank-0.err").read_text() == "complained\n"


def test_a_folder_may_be_a_string_with_a_slash(tmp_path: Path) -> None:
    start_processes(ranks.write_everywhere, start_method="fork", output=f"{tmp_path}/logs")
    assert (tmp_path / "logs" / "rank-0.err").read_text() == "complained\n"


CLOSED = """
    import os, sys
    import mp_spawn

    def streams(rank):
        print("printed by", rank, flush=True)
        return [stream and stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]

    if __name__ == "__main__":
        path, method, *closed = sys.argv[1:]
        if closed:  # this program once more, without these streams
            for fd in map(int, closed):
                os.close(fd)
            os.execv(sys.executable, [sys.executable, __file__, path, method])
        found = mp_spawn.run(streams, nprocs=2, start_method=method)
        with open(path, "w") as file:
            file.write(repr(found))
"""


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=str)
def test_a_rank_has_no_stream_that_the_program_has_closed(
    tmp_path: Path, start_method: str, closed: tuple[int, ...]
) -> None:
    path = tmp_path / "found"
    run_script(tmp_path, CLOSED, str(path), start_method, *map(str, closed))
    found = eval(path.read_text())
    assert len(found) == 2
    assert all(streams[fd] is None for streams in found for fd in closed)
