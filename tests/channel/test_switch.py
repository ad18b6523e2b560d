"""`MP_CHANNEL=0` turns channels off; they are on otherwise, and never in plain multiprocessing."""

from __future__ import annotations

import pytest
from support.scripts import run_python, succeeded

PROGRAM = """
import multiprocessing, mp_all
for make in (mp_all, mp_all.get_context("spawn"), multiprocessing, multiprocessing.get_context("spawn")):
    ends, queue = make.Pipe(), make.SimpleQueue()
    print(type(ends[0]).__name__, type(queue).__module__)
"""


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_channels_are_on_unless_the_variable_is_0(value: str) -> None:
    seen = succeeded(run_python("-c", PROGRAM, MP_CHANNEL=value)).splitlines()
    standard = "Connection multiprocessing.queues"
    assert seen[:2] == [standard if value == "0" else "ChannelConnection mp_core.channels.channel_queues"] * 2
    assert seen[2:] == [standard] * 2


def test_another_value_is_an_error_that_names_both() -> None:
    done = run_python("-c", "import mp_all", MP_CHANNEL="perhaps")
    assert "MP_CHANNEL must be 1 for channels or 0 for ordinary pipes, not 'perhaps'" in done.stderr
