"""What the kernel says of a process is read also where a sandbox leaves a part of it out."""

from __future__ import annotations

import signal

import pytest

from mp_core.system import kernel_files
from mp_core.system.kernel_files import has_signal


@pytest.mark.parametrize(
    ("lines", "blocks"),
    [
        (["Name:\tx", "State:\tS (sleeping)", "SigBlk:\t0000000000004000"], True),
        (["State:\tR (running)", "SigBlk:\t0000000000000001"], False),
        (["State:\tS (sleeping)"], False),
        (["State:\tZ (zombie)", "SigBlk:\t0000000000004000"], None),
        ([], None),
    ],
)
def test_a_set_of_signals_is_read_if_it_is_there(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], blocks: bool | None
) -> None:
    monkeypatch.setattr(kernel_files, "lines_of_kernel_file", lambda path: lines)
    assert has_signal(1, signal.SIGTERM, "SigBlk") is blocks
