"""The tests run in lanes: several series of commands at once, each with a /dev/shm of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tools import lanes

pytestmark = pytest.mark.skipif(not lanes.can_isolate(), reason="needs mount namespaces (unshare)")


def program(text: str) -> str:
    return shlex.join([sys.executable, "-c", text])


def test_a_lane_runs_its_commands_in_order_and_names_those_that_fail(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        return program(f"open({str(tmp_path / name)!r}, 'a').write({text!r})")

    texts = [f"{write('a', '1')} ; false ; {write('a', '2')}", write("b", "3")]
    assert lanes.run([lanes.parse(text) for text in texts]) == ["false"]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["12", "3"]


def test_lanes_run_at_once_and_see_no_shared_memory_of_each_other(tmp_path: Path) -> None:
    """Each creates a name, waits until the other has created its own, and lists what it sees."""
    meet = (
        f"import os, pathlib, sys, time; own, other = sys.argv[1:]; here = pathlib.Path({str(tmp_path)!r});"
        "open('/dev/shm/' + own, 'w').close(); (here / own).touch(); end = time.monotonic() + 60\n"
        "while not (here / other).exists(): assert time.monotonic() < end; time.sleep(0.01)\n"
        "assert os.listdir('/dev/shm') == [own], os.listdir('/dev/shm')\n"
        "assert os.environ['MPSHM_RUNTIME_DIR']"
    )
    pair = [shlex.join([sys.executable, "-c", meet, *names]) for names in (("a", "b"), ("b", "a"))]
    assert lanes.run([lanes.parse(text) for text in pair]) == []
