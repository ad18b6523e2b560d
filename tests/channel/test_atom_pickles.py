"""Messages that are one number, short text, bytes, None or a truth value: written and read without a pickler."""

from __future__ import annotations

import io
import pickle
import pickletools
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.damage import damaged, outcome

from mp_core.sharing import backend

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**33), 2**33),
    st.floats(),
    st.text(max_size=300),
    st.binary(max_size=300),
)


@given(ATOMS)
@example(0)
@example(255)
@example(256)
@example(65535)
@example(65536)
@example(-1)
@example(2**31 - 1)
@example(2**31)
@example(-(2**31))
@example(-(2**31) - 1)
@example(-0.0)
@example("x" * 255)
@example("x" * 256)
@example("\u20ac" * 86)  # 258 bytes
@example(b"")
def test_each_value_arrives_as_it_left(sent: Any) -> None:
    data = backend.plain_pickle(sent)
    pickletools.dis(data, out=io.StringIO())  # the standard library finds no mistake in it
    for loads in pickle.loads, backend.plain_loads:
        got = loads(data)
        assert type(got) is type(sent)
        assert repr(got) == repr(sent)


def test_a_text_without_utf8_takes_the_pickler() -> None:
    for sent in "\udc80", ["\udc80", 1]:  # half of a surrogate pair
        assert backend.plain_pickle(sent) is None
        assert ForkingPickler.loads(ForkingPickler.dumps(sent)) == sent


@given(st.lists(ATOMS, max_size=30), st.integers(0, 100), st.booleans())
@example([1 << 63, 1.5, -(1 << 63), 1 << 64], 40, True)
def test_a_long_list_or_tuple_of_atoms_arrives_as_it_left(items: list[Any], times: int, is_tuple: bool) -> None:
    sent: Any = [*range(times), *items, *map(float, range(times)), *items]
    sent = tuple(sent) if is_tuple else sent
    data = backend.plain_pickle([sent, sent, {"again": sent}])
    pickletools.dis(data, out=io.StringIO())
    for loads in pickle.loads, backend.plain_loads:
        got, same, last = loads(data)
        assert type(got) is type(sent) and repr(got) == repr(sent)
        assert same is last["again"] is got or sent == ()


ITEMS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.binary()
)
SETS = st.one_of(st.sets(ITEMS, max_size=20), st.frozensets(ITEMS | st.tuples(ITEMS, st.tuples(ITEMS)), max_size=20))


@given(SETS)
@example(set())
@example(frozenset())
def test_a_set_of_atoms_arrives_as_it_left(sent: Any) -> None:
    for message in (sent, [sent, (sent, {1: sent})]):
        data = backend.plain_pickle(message)
        pickletools.dis(data, out=io.StringIO())
        for loads in pickle.loads, backend.plain_loads:
            got = loads(data)
            assert got == message
            assert type(got if message is sent else got[0]) is type(sent)
            assert message is sent or got[0] is got[1][0] is got[1][1][1]


class Counted:
    """Counts how often its hash is asked for."""

    asked = 0

    def __hash__(self) -> int:
        type(self).asked += 1
        return 1


@pytest.mark.parametrize("make", [lambda: {Counted()}, lambda: {frozenset({1})}, lambda: frozenset({(1, Counted())})])
def test_a_set_whose_items_have_a_hash_in_python_is_left_to_the_pickler(make: Any) -> None:
    sent = make()
    before = Counted.asked
    assert backend.plain_pickle(sent) is None
    assert Counted.asked == before


@given(ATOMS | SETS, st.data())
def test_a_damaged_message_is_no_other_value_than_for_the_unpickler(value: Any, choose: st.DataObject) -> None:
    data = damaged(backend.plain_pickle(value), choose)
    assert outcome(backend.plain_loads, data) == outcome(pickle.loads, data)


class Number(int):
    """A number with attributes, which a pickler must write."""


def test_a_subclass_arrives_as_itself() -> None:
    sent = Number(5)
    sent.unit = "m"  # type: ignore[attr-defined]
    assert backend.plain_pickle(sent) is None
    with pytest.raises(AttributeError):
        _ = backend.plain_loads(backend.plain_pickle(5)).unit
