"""Another user, without root, gets neither memory nor records, and one who takes our names first is found out."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_spawn import log_records

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def as_another_user(action: Callable[[], Any]) -> str:
    """Run *action* in a child that is another user; return what it returned, or the name of its error."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            said = str(action())
        except BaseException as error:
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_another_user_reaches_neither_the_manager_nor_the_runtime_folder(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, socket, sys
        from pathlib import Path
        import mp_core as mp

        block = mp.Block(100_000)
        folder = Path(os.environ["MPSHM_RUNTIME_DIR"], f"mpshm-{os.geteuid()}")
        (at,) = folder.glob("*/socket")
        names = [Path("/dev/shm", name) for name in os.listdir("/dev/shm") if name.startswith("mpshm")]

        def try_all():
            refused = 0
            for path in (*names, folder / at.parent.name / "control"):
                try:
                    open(path, "rb").close()
                except PermissionError:
                    refused += 1
            try:
                os.listdir(folder)
            except PermissionError:
                refused += 1
            try:
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(str(at))
            except PermissionError:
                refused += 1
            return refused

        if os.fork() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            print(try_all() == len(names) + 3, flush=True)
            os._exit(0)
        os.wait()
        print(mp.get_sharing_strategy() == "file_descriptor" or len(names) > 0)
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # all users can reach it, and its path is short
        os.chmod(runtime, 0o755)
        done = run_script(tmp_path, program, MPSHM_RUNTIME_DIR=runtime, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == "True\nTrue\n"


@pytest.mark.parametrize("method", mp.get_all_start_methods())
def test_a_process_that_changes_its_user_before_anything_was_shared_gets_and_sends_arrays(
    tmp_path: Path, strategy: str, method: str
) -> None:
    program = """
        import os, sys
        import numpy as np
        import mp_all as mp

        def serve(inbox, outbox):
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
            while (array := inbox.get()) is not None:
                outbox.put(array + 1)

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            inbox, outbox = context.Queue(), context.Queue()
            child = context.Process(target=serve, args=(inbox, outbox))
            child.start()
            for size in (100_000, 200_000):
                inbox.put(np.full(size, 1.0))
                print(outbox.get(timeout=60).sum())
            inbox.put(None)
            child.join()
            print(child.exitcode)
    """
    done = run_script(tmp_path, program, method, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == "200000.0\n400000.0\n0\n"
    assert "SharedMemoryWarning" not in done.stderr


def test_a_runtime_folder_of_another_user_is_refused_and_named(tmp_path: Path, strategy: str) -> None:
    folder = tmp_path / f"mpshm-{os.geteuid()}"
    folder.mkdir(mode=0o777)
    os.chown(folder, NOBODY, NOBODY)
    program = """
        import warnings
        import mp_all as mp

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lock = mp.Lock()
        with lock:
            print(*(each.message for each in seen))
    """
    said = succeeded(run_script(tmp_path, program, MPSHM_RUNTIME_DIR=str(tmp_path), MP_SHARING_STRATEGY=strategy))
    assert "belongs to another user" in said and "set MPSHM_RUNTIME_DIR" in said


def test_a_record_is_not_sent_to_another_user_at_the_parents_address(capfd: pytest.CaptureFixture[str]) -> None:
    ready, listening = os.pipe()
    over, end = os.pipe()

    def listen() -> str:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("\0mp-tests-another-user")
        listener.listen()
        os.write(listening, b".")
        connection, _ = listener.accept()
        os.read(over, 1)
        connection.setblocking(False)
        return connection.recv(1 << 16).decode()

    reader, writer = mp.Pipe(False)
    child = mp.get_context("fork").Process(target=lambda: writer.send(as_another_user(listen)))
    child.start()
    os.read(ready, 1)
    handler = log_records._ToParent(b"\0mp-tests-another-user", 0, os.geteuid())
    handler.emit(logging.makeLogRecord({"msg": "secret", "levelno": logging.ERROR}))
    os.write(end, b".")
    assert reader.recv() == ""
    child.join()
    assert "secret" in capfd.readouterr().err
    for each in (reader, writer):
        each.close()
    for fd in (ready, listening, over, end):
        os.close(fd)
