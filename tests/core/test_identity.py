"""The runtime folder: files of another version, a relative path, and cleaners of old files."""

from __future__ import annotations

import os
import struct
import uuid
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

PROGRAM = """
    import os, sys
    import mp_core as mp
    from mp_core.sharing.backend import lib
    if len(sys.argv) > 1:
        lib.mpshm_set_own_session(bytes.fromhex(sys.argv[1]))
    try:
        mp.Block(100)
    except (OSError, MemoryError) as error:
        print(error)
    else:
        print("shared")
"""


def test_files_of_another_version_are_refused_with_both_versions(tmp_path: Path, strategy: str) -> None:
    session = uuid.uuid4().hex
    folder = tmp_path / f"mpshm-{os.geteuid()}" / session
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    header = (
        b"mpshmC\0" + bytes([99]) + bytes.fromhex(session) + struct.pack("4Q", 0, 0, 0, 0) + b"9.8.7".ljust(24, b"\0")
    )
    (folder / "control").write_bytes(header + bytes(48))
    before = (folder / "control").read_bytes()
    done = run_script(tmp_path, PROGRAM, session, MPSHM_RUNTIME_DIR=str(tmp_path), MP_SHARING_STRATEGY=strategy)
    said = succeeded(done)
    assert "9.8.7" in said and "this process has version" in said
    assert (folder / "control").read_bytes() == before


OVERWRITTEN = """
import glob, os, sys
import mp_all as mp, numpy as np

if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=print, args=(mp.shared.zeros(10_000),))
    (path,) = glob.glob(f"{os.environ['MPSHM_RUNTIME_DIR']}/mpshm-*/*/control")
    with open(path, "r+b") as file:
        file.write(b"progress: 50 %\\n")
    os.dup2(1, 2)
    child.start()
    child.join()
"""


def test_a_session_into_whose_file_a_program_has_written_is_called_damaged(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, OVERWRITTEN, MPSHM_RUNTIME_DIR=str(tmp_path), MP_SHARING_STRATEGY=strategy)
    assert "the control file of its sender's session is damaged: something has written to it" in succeeded(done)


def test_a_relative_folder_is_refused_by_name(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, PROGRAM, MPSHM_RUNTIME_DIR="somewhere", MP_SHARING_STRATEGY=strategy)
    assert "MPSHM_RUNTIME_DIR is 'somewhere', which is relative" in succeeded(done)


@pytest.mark.parametrize(("name", "problem"), [("no", "is missing"), ("program.py", "is not a folder")])
def test_a_folder_that_is_none_is_refused_by_name(tmp_path: Path, strategy: str, name: str, problem: str) -> None:
    path = str(tmp_path / name)
    said = succeeded(run_script(tmp_path, PROGRAM, MPSHM_RUNTIME_DIR=path, MP_SHARING_STRATEGY=strategy))
    assert f"the runtime folder {path} {problem}; set MPSHM_RUNTIME_DIR to" in said


def test_a_file_in_the_place_of_the_users_folder_is_named(tmp_path: Path, strategy: str) -> None:
    (path := tmp_path / f"mpshm-{os.geteuid()}").touch()
    said = succeeded(run_script(tmp_path, PROGRAM, MPSHM_RUNTIME_DIR=str(tmp_path), MP_SHARING_STRATEGY=strategy))
    assert f"the runtime folder {path} is not a folder; set MPSHM_RUNTIME_DIR to" in said


@pytest.mark.parametrize("spelled", ["{}/", "{}//", "{}/./", "link"])
def test_a_folder_may_be_spelled_in_any_way(tmp_path: Path, strategy: str, spelled: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = str(tmp_path / "link") if spelled == "link" else spelled.format(tmp_path)
    assert succeeded(run_script(tmp_path, PROGRAM, MPSHM_RUNTIME_DIR=path, MP_SHARING_STRATEGY=strategy)) == "shared\n"


LOCKED = """
    import fcntl, os, pathlib
    import mp_core as mp
    block = mp.Block(100)
    folder = next(pathlib.Path(os.environ["MPSHM_RUNTIME_DIR"]).glob("mpshm-*/*"))
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except BlockingIOError:
        print("locked")
"""


def test_cleaners_of_old_files_find_the_folder_locked(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, LOCKED, MPSHM_RUNTIME_DIR=str(tmp_path), MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == "locked\n"
