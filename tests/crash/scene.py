"""Observations of the crash tests from outside: managers, names, the folder of a session, ended processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import ended
from support.waiting import until

LONG = os.environ.get("MP_SOAK") == "1"
NAME = re.compile(r"/dev/shm/(mpshm-[0-9a-f]+)")


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A runtime folder for this test alone; it must be empty again at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mpshm-crash-"))
    try:
        yield folder
        assert until(lambda: not left_in(folder)), left_in(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def left_in(folder: Path) -> list[str]:
    """Return the content of the folder, and its managers."""
    # os.walk passes over a folder that is taken away while it is being read; Path.rglob raises.
    found = [os.path.join(at, name) for at, folders, files in os.walk(folder) for name in folders + files]
    return [os.path.relpath(path, folder) for path in found] + [f"manager {p}" for p in managers(folder)]


def managers(folder: str | Path) -> list[int]:
    """Return the managers of the sessions in *folder* that have not ended."""
    of_any = {int(entry): manager_command(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    return [pid for pid, words in of_any.items() if words and words[1].startswith(os.fsencode(folder))]


def manager_command(pid: int) -> list[bytes]:
    """
    Return the command line of a manager; empty if the process is none, or has ended.

    A process that begins a program, or is about to end, has no command line for a moment. In the second case it still
    has its files.
    """
    process = Path(f"/proc/{pid}")
    try:
        if (process / "comm").read_text(errors="replace") != "shm-manager\n":
            return []
        line = until(lambda: ended(pid) or (process / "cmdline").read_bytes())
    except OSError:
        return []
    assert line, f"manager {pid} neither runs nor ends"
    words = [] if line is True else line.split(b"\0")
    while words and os.path.basename(words[0]) != b"shm-manager":
        del words[0]  # an emulator's
    return words


def names_of(pids: Iterable[int]) -> set[str]:
    """Return the names in /dev/shm that these processes have mapped."""
    return {name for pid in pids for name in NAME.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace"))}


def memory_of(*pids: int) -> int:
    """Return the bytes in use in all segments that these processes have open."""
    segments = {}
    for pid in pids:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{entry}"
            try:
                if os.readlink(path).startswith(("/memfd:mpshm", "/dev/shm/mpshm")):
                    state = os.stat(path)
                    segments[state.st_dev, state.st_ino] = state.st_blocks * 512
            except FileNotFoundError:
                pass
    return sum(segments.values())


def with_dev_shm_of(size: str, *command: str) -> list[str]:
    """Return the command, in a mount namespace whose /dev/shm has that size."""
    script = f'mount -t tmpfs -o size={size} shm /dev/shm && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", *command]


def can_unshare() -> bool:
    """Return whether a mount namespace can be made here, with a /dev/shm of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(with_dev_shm_of("1m", "true"), capture_output=True).returncode == 0


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "faulthandler", *arguments]
