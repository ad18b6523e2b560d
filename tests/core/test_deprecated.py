"""Old public names work for one more release, and warn about the line that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mp_all
import mp_core
import mp_cuda


def segment() -> mp_core.Segment:
    return mp_core.Segment("ab", 3, "file_system", 1, 0.5, 0, 0, 0, 0, ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda: mp_core.Claim, mp_core.LeaseReference),
        (lambda: mp_all.Claim, mp_core.LeaseReference),
        (lambda: mp_all.claim_lease, mp_core.receive_lease),
        (lambda: mp_cuda.situation, mp_cuda.device_report),
        (lambda: segment().tree, "ab"),
        (lambda: segment().row, 3),
        (lambda: mp_core.Lease(lambda: None).claims, 0),
        (lambda: mp_core.Lease(on_last_claim=print)._callback, print),
        (lambda: mp_core.memory_stats()["tree_cached_bytes"] >= 0, True),
    ],
)
def test_an_old_name_warns_and_means_the_new_one(old: Callable[[], Any], new: Any) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated; use") as warned:
        assert old() == new
    assert warned[0].filename == __file__


def test_other_counters_that_do_not_exist_are_key_errors() -> None:
    with pytest.raises(KeyError):
        mp_core.memory_stats()["row_cached_bytes"]
    with pytest.raises(TypeError, match="on_last_release"):
        mp_core.Lease()
