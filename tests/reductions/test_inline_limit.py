"""The inline limit: that many bytes of private arrays travel in a message, the rest through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from support.scripts import run_python, succeeded

import mp_all as mp


@pytest.fixture
def limit() -> Iterator[int]:
    before = mp.get_inline_limit()
    yield before
    mp.set_inline_limit(before)


def travelled(array: np.ndarray) -> np.ndarray:
    return ForkingPickler.loads(ForkingPickler.dumps(array))


def test_the_limit_is_some_tens_of_kilobytes(limit: int) -> None:
    assert 4 * 1024 <= limit <= 256 * 1024


def test_a_new_setting_is_in_force(limit: int) -> None:
    mp.set_inline_limit(1000)
    assert mp.get_inline_limit() == 1000


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 100_000])
def test_an_array_at_the_limit_travels_inside_and_one_beyond_it_does_not(
    strategy: str, limit: int, nbytes: int
) -> None:
    mp.set_inline_limit(nbytes)
    at, beyond = travelled(np.ones(nbytes, "u1")), travelled(np.ones(nbytes + 1, "u1"))
    assert (mp.is_shared(at), mp.is_shared(beyond)) == (False, True)
    assert (at.sum(), beyond.sum()) == (nbytes, nbytes + 1)
    assert at.flags.writeable
    assert beyond.flags.writeable


KINDS = {
    "plain": lambda nbytes: np.full(nbytes, 7, "u1"),
    "read-only": lambda nbytes: np.frombuffer(b"\7" * nbytes, "u1"),
    "backwards": lambda nbytes: np.full(nbytes, 7, "u1")[::-1],
    "row": lambda nbytes: np.full((3, nbytes), 7, "u1")[1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_for_the_whole_message(strategy: str, limit: int, kind: str) -> None:
    mp.set_inline_limit(6_000)
    sent = [KINDS[kind](1_000) for _ in range(16)]  # more would have a table
    for _ in range(2):  # and each message begins anew
        got = travelled(sent)
        assert [mp.is_shared(a) for a in got] == [False] * 6 + [True] * 10
        assert all((a == 7).all() and a.shape == (1_000,) for a in got)


def test_a_full_message_still_takes_arrays_smaller_than_a_handle(strategy: str, limit: int) -> None:
    mp.set_inline_limit(10_000)
    got = travelled([np.zeros(10_000, "u1"), *(np.full(256, k, "u1") for k in range(200))])
    assert not any(map(mp.is_shared, got))
    assert [int(a[-1]) for a in got] == [0, *range(200)]


def test_a_message_within_a_message_has_its_own_room(strategy: str, limit: int) -> None:
    mp.set_inline_limit(1_000)
    outer = travelled([np.zeros(600, "u1"), Envelope(np.zeros(600, "u1")), np.zeros(400, "u1"), np.zeros(300, "u1")])
    assert [mp.is_shared(a) for a in (outer[0], outer[1].content, *outer[2:])] == [False, False, False, True]


class Envelope:
    """Pickles its content by itself."""

    def __init__(self, content: np.ndarray) -> None:
        self.content = content

    def __reduce__(self):
        return opened, (bytes(ForkingPickler.dumps(self.content)),)


def opened(letter: bytes) -> Envelope:
    return Envelope(ForkingPickler.loads(letter))


def test_a_shared_array_is_shared_whatever_the_limit(strategy: str, limit: int) -> None:
    mp.set_inline_limit(1 << 20)
    array = mp.shared.zeros(1)
    travelled(array)[0] = 1
    assert array[0] == 1


@pytest.mark.parametrize("nbytes", [-1, -(2**70)])
def test_a_negative_limit_is_a_value_error_with_the_number(limit: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match=str(nbytes)):
        mp.set_inline_limit(nbytes)
    assert mp.get_inline_limit() == limit


@pytest.mark.parametrize("nbytes", [1.5, b"1000", None])
def test_a_limit_that_is_not_an_integer_is_a_type_error(limit: int, nbytes: object) -> None:
    with pytest.raises(TypeError):
        mp.set_inline_limit(nbytes)
    assert mp.get_inline_limit() == limit


def test_the_environment_sets_the_initial_value() -> None:
    program = "import mp_all; print(mp_all.get_inline_limit())"
    assert succeeded(run_python("-c", program, MP_INLINE_BYTES="12345")) == "12345\n"
    assert succeeded(run_python("-c", program, MP_INLINE_BYTES="4 KiB")) == "4096\n"


@pytest.mark.parametrize("text", ["-1", "many", "1,5"])
def test_a_wrong_environment_is_an_error_that_names_variable_and_value(text: str) -> None:
    done = run_python("-c", "import mp_all", MP_INLINE_BYTES=text)
    assert done.returncode == 1
    assert "MP_INLINE_BYTES" in done.stderr
    assert text in done.stderr
