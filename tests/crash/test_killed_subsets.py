"""Any of producer, consumer, parent and manager are killed at once: the others go on, and nothing is left."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from scene import LONG, left_in, managers, memory_of, names_of, python, runtime_folder
from support.capabilities import is_emulated
from support.processes import ended, stopped
from support.waiting import until

ROLES = ("parent", "producer", "consumer")
EVERYBODY = (*ROLES, "manager")
SUBSETS = [s for n in range(1, 5) for s in itertools.combinations(EVERYBODY, n)]
# The short form: each alone, each with the manager, all the clients, and all processes.
SHORT = [s for s in SUBSETS if len(s) == 1 or (len(s) == 2 and s[1] == "manager") or len(s) > 3 or s == ROLES]
AFTER_THE_LAST_USER = 2.0


class Session:
    """A running `session.py`, with a socket to each of its processes."""

    def __init__(self, folder: Path, strategy: str) -> None:
        self.folder = folder
        self.environment = os.environ | {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
        pairs = [socket.socketpair() for _ in ROLES]
        numbers = [theirs.fileno() for _, theirs in pairs]
        self.program = subprocess.Popen(
            python(str(Path(__file__).with_name("session.py")), *map(str, numbers)),
            pass_fds=numbers,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        self.lines, self.pids = {}, {}
        for role, (ours, theirs) in zip(ROLES, pairs, strict=True):
            theirs.close()
            ours.settimeout(30)
            self.lines[role] = ours.makefile("rw")
            ours.close()
        for role in ROLES:
            self.pids[role] = int(self.lines[role].readline())
        (self.pids["manager"],) = managers(folder)

    def kill(self, roles: tuple[str, ...]) -> None:
        # Stopped first, so that none of them answers the end of another before its own.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for role in roles:
                os.kill(self.pids[role], signum)
            if signum == signal.SIGSTOP:
                assert until(lambda: all(stopped(self.pids[role]) for role in roles))
        for role in roles:
            assert until(lambda role=role: ended(self.pids[role]))

    def tell(self, role: str, command: str) -> None:
        self.lines[role].write(command + "\n")
        self.lines[role].flush()

    def close(self) -> None:
        for lines in self.lines.values():
            lines.close()
        for pid in self.pids.values():
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)
        self.program.wait(20)


@pytest.mark.parametrize("killed", SUBSETS if LONG else SHORT, ids="+".join)
def test_the_others_go_on_and_nothing_is_left(strategy: str, killed: tuple[str, ...]) -> None:
    with runtime_folder() as folder:
        session = Session(folder, strategy)
        try:
            names = names_of(session.pids.values())
            assert bool(names) == (strategy == "file_system")
            session.kill(killed)
            survivors = [role for role in ROLES if role not in killed]
            for role in survivors:
                session.tell(role, "work")
                assert session.lines[role].readline() == "worked\n", role
            for role in reversed(survivors):  # the parent last
                session.tell(role, "end")
                assert role == "parent" or until(lambda role=role: ended(session.pids[role]))
            if "parent" in survivors:
                assert session.program.wait(20) == 0
            if survivors or "manager" not in killed:
                assert until(lambda: not left(folder, names), AFTER_THE_LAST_USER), left(folder, names)
            else:
                # No process was left to clean up. It is one session, and the next program removes it.
                assert len(list(folder.glob("*/*"))) == 1
                program = "import mp_all as mp; mp.shared.ones(10)"
                assert subprocess.run(python("-c", program), env=session.environment, timeout=60).returncode == 0
                assert until(lambda: not left(folder, names), AFTER_THE_LAST_USER), left(folder, names)
        finally:
            session.close()


def left(folder: Path, names: set[str]) -> list[str]:
    return left_in(folder) + sorted(names & set(os.listdir("/dev/shm")))


HOLDER = """
import sys
import mp_all as mp

def hold(connection, mine):
    own = mp.shared.ones(4_000_000)
    connection.send(own[:10])
    connection.recv()  # and never an answer

if __name__ == "__main__":
    mp.set_start_method("fork")
    ours, theirs = mp.Pipe()
    base = mp.shared.ones(1000)
    process = mp.Process(target=hold, args=(theirs, base))
    process.start()
    view = ours.recv()
    assert view.sum() == 10
    del view
    print(process.pid, flush=True)
    sys.stdin.read()
    process.join()
"""


@pytest.mark.skipif(is_emulated(), reason="needs madvise(MADV_REMOVE), which does nothing in an emulator")
def test_the_memory_of_a_dead_peer_is_freed_while_others_live(strategy: str) -> None:
    with runtime_folder() as folder:
        environment = os.environ | {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
        with subprocess.Popen(
            python("-c", HOLDER), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            peer = int(program.stdout.readline())
            (manager,) = managers(folder)
            assert memory_of(manager, program.pid) >= 32_000_000
            os.kill(peer, signal.SIGKILL)
            assert until(lambda: memory_of(manager, program.pid) < 4_000_000), memory_of(manager)
            program.communicate("", timeout=20)
        assert program.returncode == 0
