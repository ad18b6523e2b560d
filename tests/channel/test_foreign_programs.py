"""A subprocess that opens the inherited descriptor of a ring as an ordinary connection is reported, once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

SENDS = "import sys; from multiprocessing.connection import Connection; c = Connection(int(sys.argv[1]))\n"


def program(fd: int, text: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SENDS + text, str(fd)]
    return subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE, text=True)


@pytest.mark.parametrize("receive", ["recv", "poll", "recv_bytes"])
@pytest.mark.timeout(60)
def test_a_receive_warns_once_of_bytes_that_are_no_message(ends: Any, receive: str) -> None:
    reader, writer = ends
    process = program(writer.fileno(), "for i in range(3): c.send(i); sys.stdin.readline()")
    writer.close()
    process.communicate("\n\n\n", timeout=60)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            if receive == "poll":
                assert reader.poll(10)  # the end of the file
            else:
                with pytest.raises(EOFError):
                    getattr(reader, receive)()
    assert [each.category for each in seen] == [RuntimeWarning]
    assert "Connection(fd)" in str(seen[0].message)


@pytest.mark.timeout(60)
def test_a_receive_that_waits_already_warns_and_the_warning_can_be_an_error(ends: Any) -> None:
    reader, writer = ends
    process = program(writer.fileno(), "c.send([1, 2]); sys.stdin.readline()")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="another program writes"):
            reader.recv()
    writer.send("of a ring")
    assert reader.recv() == "of a ring"
    process.communicate("\n", timeout=60)


@pytest.mark.timeout(60)
def test_a_subprocess_that_only_holds_the_descriptor_is_no_reason_to_warn(ends: Any) -> None:
    reader, writer = ends
    process = program(writer.fileno(), "sys.stdin.readline()")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for number in range(5):
            assert not reader.poll(0.01)
            writer.send(number)
            assert reader.recv() == number
    process.communicate("\n", timeout=60)
