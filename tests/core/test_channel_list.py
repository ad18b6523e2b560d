"""The unread messages of channels, as they are found from outside through /proc."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="channels are found in /proc")

# A program of its own has no other channels.
BEGIN = """
    import os
    import mp_all as mp
    from mp_core.channels.channel_list import list_channels

    def unread():
        channels = list_channels([os.getpid()])
        assert all(each.pids == (os.getpid(),) for each in channels)
        return sorted((each.unread, each.nbytes) for each in channels)
"""


def run(folder: Path, program: str) -> str:
    return succeeded(run_script(folder, BEGIN + program, MP_CHANNEL="1"))


def test_a_message_counts_from_its_send_to_its_receipt(tmp_path: Path) -> None:
    program = """
    receiver, sender = mp.Pipe(duplex=False)
    assert unread() == []  # it has no ring before its first use
    assert not receiver.poll()
    assert unread() == [(0, 0)]
    sender.send("a")
    sender.send(b"b" * 1000)
    ((messages, nbytes),) = unread()
    assert messages == 2 and 1000 < nbytes < 1200
    receiver.recv()
    assert unread()[0][0] == 1
    receiver.recv()
    assert unread() == [(0, 0)]
    receiver.close()
    sender.close()
    assert unread() == []
    print("counted")
    """
    assert run(tmp_path, program) == "counted\n"


def test_each_direction_of_a_pipe_counts_its_own(tmp_path: Path) -> None:
    program = """
    here, there = mp.Pipe()
    here.send(1), here.send(2), there.send(3)
    print([messages for messages, nbytes in unread()])
    """
    assert run(tmp_path, program) == "[1, 2]\n"


def test_processes_that_have_ended_and_other_descriptors_have_no_channels(tmp_path: Path) -> None:
    program = """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    others = [os.pipe(), os.memfd_create("mpshm")]
    print(list_channels([child, os.getpid()]))
    """
    assert run(tmp_path, program) == "[]\n"
