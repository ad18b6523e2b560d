"""The parent-death signal: a real parent is killed, and its child must not outlive it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mp_all as mp

# A parent that starts a child and tells its pid; the child says on which side of its call it is.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.read(6)
print(child.pid, flush=True)
{then}
"""
CHILD = """
import signal, mp_core
mp_core.set_parent_death_signal(signal.{name})
print("armed", flush=True)
signal.pause()
"""
# A child that is an orphan before it asks.
ORPHAN = """
import os, mp_core, signal
reader, writer = os.pipe()
parent = os.getpid()
if os.fork():
    os._exit(0)
os.close(writer)
while os.getppid() == parent:
    select_ready = os.read(reader, 1)  # ends when the parent has gone
mp_core.set_parent_death_signal(signal.SIGTERM{argument})
print("alive", flush=True)
"""


def start(then: str, child: str) -> tuple[subprocess.Popen, int, int]:
    """
    A parent, its child's pid, and a descriptor that becomes readable when the child ends.
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then), child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    return parent, pid, os.pidfd_open(pid)


def ended(pidfd: int, timeout: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout)[0])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_killed_parent(name: str, how: signal.Signals) -> None:
    parent, pid, pidfd = start("sys.stdin.read()", CHILD.format(name=name))
    try:
        assert not ended(pidfd, 0)
        parent.send_signal(how)
        assert ended(pidfd, 10), "the child outlived its parent"
    finally:
        if not ended(pidfd, 0):
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)
        parent.communicate()


def test_a_child_dies_with_a_parent_that_exits() -> None:
    parent, pid, pidfd = start("sys.stdin.read()", CHILD.format(name="SIGTERM"))
    try:
        parent.communicate("")
        assert parent.returncode == 0
        assert ended(pidfd, 10), "the child outlived its parent"
    finally:
        if not ended(pidfd, 0):
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)


def test_zero_cancels_the_signal() -> None:
    child = CHILD.format(name="SIGKILL").replace('print("armed', 'mp_core.set_parent_death_signal(0); print("armed')
    parent, pid, pidfd = start("sys.stdin.read()", child)
    parent.kill()
    parent.communicate()
    # The signal comes while the parent ends, which has been waited for.
    assert not ended(pidfd, 0.2)
    os.kill(pid, signal.SIGKILL)
    assert ended(pidfd, 10)
    os.close(pidfd)


def test_an_orphan_that_names_its_parent_gets_the_signal_at_once() -> None:
    program = ORPHAN.format(argument=", parent=parent")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    # The pipes close when the orphan ends, so what it printed is complete.
    assert done.stdout == ""
    assert done.stderr == ""


def test_an_orphan_that_names_no_parent_lives_on() -> None:
    program = ORPHAN.format(argument="")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("alive\n", "")


@pytest.mark.parametrize("signum", [-1, 65, 1000, 2**31])
def test_an_invalid_signal_number_is_a_value_error_with_the_number(signum: int) -> None:
    with pytest.raises(ValueError, match=str(signum)):
        mp.set_parent_death_signal(signum)


# int() would turn a mistake into a signal.


@pytest.mark.parametrize("signum", [None, "SIGTERM", 1.5])
def test_a_signal_that_is_not_a_number_is_refused(signum: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        mp.set_parent_death_signal(signum)


def test_a_refused_signal_leaves_the_old_one() -> None:
    child = CHILD.format(name="SIGKILL").replace(
        'print("armed',
        'try:\n    mp_core.set_parent_death_signal(1000)\nexcept ValueError:\n    print("armed',
    )
    parent, pid, pidfd = start("sys.stdin.read()", child)
    parent.kill()
    parent.communicate()
    if not ended(pidfd, 10):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the child outlived its parent")
    os.close(pidfd)
    assert not Path(f"/proc/{pid}/exe").exists()
