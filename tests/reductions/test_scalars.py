"""NumPy's scalars in messages: written without a pickler, each arrives with its type and its bits."""

from __future__ import annotations

import copyreg
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.readers import by_unpickler, in_c

from mp_core.sharing import backend

FEW_BITS = "?bBhHiIlLqQ"


@given(st.sampled_from(FEW_BITS + "efd"), st.binary(min_size=8, max_size=8))
def test_each_arrives_as_it_left(kind: str, data: bytes) -> None:
    if kind == "?":
        data = bytes([data[0] & 1]) * 8
    sent = np.frombuffer(data, kind)[0]
    message = bytes(ForkingPickler.dumps({"value": sent}))
    for loads in in_c, by_unpickler:
        got = loads(message)["value"]
        assert type(got) in (type(sent), type(pickle.loads(pickle.dumps(sent))))  # its ulonglong arrives as uint64
        assert got.tobytes() == sent.tobytes()


UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s", "10D", "3M"]


@given(st.sampled_from("Mm"), st.sampled_from(UNITS), st.sampled_from([-(2**63), 0]) | st.integers(-(2**63), 2**63 - 1))
def test_a_date_and_a_duration_arrive_with_their_unit(kind: str, unit: str, count: int) -> None:
    sent = np.array(count, np.int64).view(f"{kind}8[{unit}]")[()]
    data = backend.plain_data([sent])
    assert data is not None
    for loads in in_c, by_unpickler:
        (got,) = loads(data)
        assert (type(got), got.dtype, got.tobytes()) == (type(sent), sent.dtype, sent.tobytes())


@pytest.mark.filterwarnings("ignore:The 'generic' unit")  # newer versions of NumPy deprecate it
@pytest.mark.parametrize(("kind", "value"), [(np.timedelta64, 5), (np.timedelta64, "NaT"), (np.datetime64, "NaT")])
def test_one_without_a_unit_is_left_to_the_pickler(kind: Any, value: Any) -> None:
    sent = kind(value)
    assert backend.plain_data(sent) is None
    got = ForkingPickler.loads(ForkingPickler.dumps(sent))
    assert (type(got), got.dtype, got.tobytes()) == (type(sent), sent.dtype, sent.tobytes())


@pytest.mark.parametrize("kind", FEW_BITS + "efd")
def test_it_needs_no_pickler(kind: str) -> None:
    sent = np.dtype(kind).type(1)
    data = backend.plain_data([sent, sent])
    assert data is not None
    first, second = pickle.loads(data)  # and any unpickler reads it
    assert first is second
    assert type(first) is type(sent)


def test_a_number_of_64_bits_without_a_sign_needs_no_pickler() -> None:
    sent = np.uint64(2**63)
    got = in_c(backend.plain_data(sent))
    assert type(got) is np.uint64 and got == sent


@pytest.mark.parametrize("sent", [np.float32("nan"), np.float16("nan"), np.complex64(1j)])
def test_a_number_that_python_has_no_equal_for_is_left_to_the_pickler(sent: Any) -> None:
    assert backend.plain_data(sent) is None
    got = ForkingPickler.loads(ForkingPickler.dumps(sent))
    assert (type(got), got.tobytes()) == (type(sent), sent.tobytes())


@pytest.mark.parametrize("table", [copyreg.dispatch_table, ForkingPickler._extra_reducers])  # type: ignore[attr-defined]
def test_a_reducer_of_the_program_gets_them(monkeypatch: pytest.MonkeyPatch, table: Any) -> None:
    monkeypatch.setitem(table, np.float32, lambda scalar: (str, ("reduced",)))
    assert ForkingPickler.loads(ForkingPickler.dumps([np.float32(1)])) == ["reduced"]


class Degrees(np.float64):
    """A subclass, which NumPy's own reduction makes a float64."""


def test_a_subclass_is_left_to_the_pickler() -> None:
    assert backend.plain_data(Degrees(5)) is None
    got = ForkingPickler.loads(ForkingPickler.dumps(Degrees(5)))
    assert type(got) is type(pickle.loads(pickle.dumps(Degrees(5))))
