"""Thread names, as the kernel shows them: up to fifteen bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mp_all as mp


def in_a_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """
    Call *function* in a thread of its own, so that the name of pytest's main thread does not change.
    """
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append(function(*arguments))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def set_and_look(name: str) -> tuple[str, str]:
    mp.set_thread_name(name)
    return mp.get_thread_name(), Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()[:-1]


@pytest.mark.parametrize("name", ["a", "feeder", "fifteen bytes !", "", "ä", "名前"])
def test_the_kernel_shows_the_name(name: str) -> None:
    assert in_a_thread(set_and_look, name) == (name, name)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("sixteen bytes !!", "sixteen bytes !"),
        ("x" * 1000, "x" * 15),
        ("x" * 14 + "ä", "x" * 14),
        ("x" * 13 + "ä", "x" * 13 + "ä"),
        ("x" * 13 + "名", "x" * 13),
        ("\U0001f40d" * 4, "\U0001f40d" * 3),
    ],
)
def test_a_longer_name_is_cut_at_fifteen_bytes_between_two_characters(name: str, kept: str) -> None:
    assert in_a_thread(set_and_look, name) == (kept, kept)


def test_a_name_belongs_to_its_thread() -> None:
    before = mp.get_thread_name()
    in_a_thread(mp.set_thread_name, "another")
    assert mp.get_thread_name() == before


@pytest.mark.parametrize("name", [None, 3, b"bytes"])
def test_a_name_that_is_not_text_is_a_type_error(name: object) -> None:
    with pytest.raises(TypeError):
        in_a_thread(mp.set_thread_name, name)


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="a\\\\x00b"):
        in_a_thread(mp.set_thread_name, "a\0b")


def test_torchs_names_are_the_same_functions() -> None:
    assert mp._set_thread_name is mp.set_thread_name
    assert mp._get_thread_name is mp.get_thread_name
    assert mp._prctl_pr_set_pdeathsig is mp.set_parent_death_signal
