"""A lack of descriptors or of room is an error, and leaves no descriptor open, no thread busy and nobody waiting."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.scripts import NO_DESCRIPTORS, run_script, succeeded

from mp_core.memory import mapped_buffers
from mp_spawn import start_processes
from mp_spawn.output import destinations as output
from mp_spawn.output.streams import Streams
from mp_spawn.output.tee import Tee
from mp_spawn.ranks import rank


def descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


@contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """Let this process open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    top = max(descriptors()) + 1 + number
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
    try:
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for fd in held[len(held) - number :]:
                os.close(fd)
            del held[len(held) - number :]
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_of_memory_that_cannot_be_written_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "no room")

    before = descriptors()
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "write", full)
        mapped_buffers.memory_file(b"some")
    assert descriptors() == before


@pytest.mark.parametrize("make", [output.Files, lambda folder: Tee(Streams(folder))], ids=["Files", "Tee"])
def test_the_files_of_a_rank_that_could_not_be_opened_are_closed(make: Any, tmp_path: Path) -> None:
    before = descriptors()
    files = make(tmp_path)
    with descriptors_left(1), pytest.raises(OSError):
        files.ends_for(0, 0)
    files.finish()
    assert descriptors() == before


def test_waiting_for_ranks_takes_no_descriptor() -> None:
    with descriptors_left(0), rank.Events([], {}, None, lambda signum: None) as events:
        assert events.poll(0) == []


def test_a_rank_for_which_there_is_no_descriptor_is_named_with_the_remedy(tmp_path: Path, start_method: str) -> None:
    program = """
        import os, resource, sys
        import mp_spawn

        def nothing(rank):
            pass

        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
            for nprocs in (20, 101):
                try:
                    mp_spawn.run(nothing, nprocs=nprocs, start_method=sys.argv[1])
                except (OSError, ValueError) as error:
                    print(error)
    """
    done = run_script(tmp_path, program, start_method)
    told, refused = done.stdout.splitlines()
    assert re.fullmatch(
        r"\[Errno 24\] rank 1?\d cannot be started: this process has no descriptor left; "
        r"raise the limit \(ulimit -n\), or start fewer ranks",
        told,
    ), done.stderr
    assert refused.startswith("nprocs=101 is too large; this machine allows at most 16 ranks, by the limit of desc")


def test_a_parent_without_descriptors_does_not_spin_over_a_child_that_logs(tmp_path: Path) -> None:
    program = f"""
        import logging, resource, textwrap, time
        import mp_all as mp

        def log(ready):
            ready.set()
            logging.getLogger().warning("from the child")

        if __name__ == "__main__":
            with mp.logging_to_parent():
                ctx = mp.get_context("fork")
                ready = ctx.Event()
                child = ctx.Process(target=log, args=(ready,))
                child.start()
                exec(textwrap.dedent({NO_DESCRIPTORS!r}))
                ready.wait()
                before = time.process_time()
                time.sleep(2)
                print(time.process_time() - before < 1)
                for fd in held:
                    os.close(fd)
                child.join()
    """
    done = run_script(tmp_path, program)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
    assert "from the child" in done.stderr


@pytest.mark.parametrize("lack", ["a process", "a process and a thread"])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_limit_of_processes_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, lack: str, start_method: str
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    class Exhausted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    before = descriptors()
    what = {"spawn": "no rank can be started", "fork": "rank 0 cannot be started"}
    with monkeypatch.context() as patch, pytest.raises(OSError, match=rf"{what[start_method]}: .*\(ulimit -u\)"):
        patch.setattr(subprocess, "Popen", refused)
        patch.setattr(os, "fork", refused)
        if "thread" in lack:
            patch.setattr(output.threading, "Thread", Exhausted)
        start_processes(print, nprocs=2, start_method=start_method, output="capture")
    left = descriptors() - before
    assert len(left) == (4 if start_method == "fork" else 0)  # multiprocessing does not close its two pipes
    for fd in left:
        os.close(fd)


def test_a_limit_of_the_size_of_files_is_named_with_what_a_rank_would_get(tmp_path: Path) -> None:
    program = """
        import resource
        import numpy as np
        import mp_all as mp

        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            try:
                mp.run(len, nprocs=2, args=(np.ones(1_000_000),), start_method="spawn")
            except OSError as error:
                print(error)
    """
    said = succeeded(run_script(tmp_path, program))
    assert "would get 8,000,000 bytes in a file" in said and "(ulimit -f)" in said
