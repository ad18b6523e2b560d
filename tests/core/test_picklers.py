"""The pickler of a message has the reducers of `ForkingPickler` and copyreg at that moment, as the standard one has."""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import socket
import threading
from collections import ChainMap
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import mp_all as mp
from mp_core.system import reducers

TABLE: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


class Thing:
    """Has no reducer, until a test registers one."""


class Heir(Thing):
    """Has none either."""


def there_and_back(thing: Any, pickler: Any = ForkingPickler) -> Any:
    return pickle.loads(pickler.dumps(thing))


def by(name: str) -> Any:
    return lambda thing: (str, (name,))


@pytest.fixture
def clean() -> Iterator[None]:
    """Take back what a test has registered."""
    yield
    for kind in (Thing, Heir):
        TABLE.pop(kind, None)
        copyreg.dispatch_table.pop(kind, None)
    reducers._bases.pop(Thing, None)


def test_a_class_that_was_sent_without_a_reducer_has_the_one_that_is_registered_later(clean: None) -> None:
    for _ in range(2):
        assert type(there_and_back(Thing())) is Thing
        copyreg.pickle(Thing, by("copyreg"))  # type: ignore[arg-type]
        assert there_and_back([Thing()]) == ["copyreg"]
        ForkingPickler.register(Thing, by("register"))
        assert there_and_back([Thing()]) == ["register"]
        del TABLE[Thing]
        assert there_and_back([Thing()]) == ["copyreg"]
        dict.__setitem__(TABLE, Thing, by("the table"))
        assert there_and_back([Thing()]) == ["the table"]
        del TABLE[Thing], copyreg.dispatch_table[Thing]


def test_a_class_that_was_sent_without_a_reducer_has_the_one_that_its_base_is_offered_later(clean: None) -> None:
    assert type(there_and_back(Heir())) is Heir
    reducers.of_subclasses(Thing, lambda kind: by("its base"))
    assert there_and_back([Heir()]) == ["its base"]


def test_classes_that_are_gone_are_forgotten() -> None:
    gc.collect()
    before = len(reducers.without)
    for _ in range(50):
        kind = type("Gone", (), {"__reduce__": lambda self: (str, ("gone",))})
        assert there_and_back(kind()) == "gone"
    del kind
    gc.collect()
    assert len(reducers.without) <= before + 1


def test_a_pickler_with_reducers_of_its_own_has_no_others_beside_threads_that_send() -> None:
    class Own(ForkingPickler):
        _extra_reducers = {Thing: by("its own")}  # noqa: RUF012

    wrong: list[Any] = []

    def send(pickler: Any, expected: Any) -> None:
        for _ in range(2000):
            received = there_and_back([Thing()], pickler)[0]
            if type(received) is not expected:
                wrong.append(received)

    threads = [threading.Thread(target=send, args=pair) for pair in ((Own, str), (ForkingPickler, Thing))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_what_a_program_has_replaced_in_the_pickler_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wants(ForkingPickler):
        def __new__(cls, file: Any, *args: Any) -> Any:
            made = super().__new__(cls)
            made.file = file
            return made

    assert type(there_and_back(Thing(), Wants)) is Thing

    class Chained(ForkingPickler):
        _copyreg_dispatch_table = ChainMap({Thing: by("chained")}, copyreg.dispatch_table)  # noqa: RUF012

    assert there_and_back([Thing(), np.ones(3)], Chained)[0] == "chained"
    standard = ForkingPickler.__init__

    def init(self: Any, *args: Any) -> None:
        standard(self, *args)
        self.dispatch_table[Thing] = by("replaced")

    monkeypatch.setattr(ForkingPickler, "__init__", init)
    assert there_and_back([Thing()]) == ["replaced"]


@pytest.mark.parametrize("count", [3, 40])
def test_a_pickler_with_persistent_ids_writes_what_its_own_unpickler_reads(count: int) -> None:
    class Names(ForkingPickler):
        def persistent_id(self, thing: Any) -> Any:
            return "a slice" if type(thing) is slice else None

    class Finds(pickle.Unpickler):
        def persistent_load(self, name: Any) -> Any:
            return name

    sent = [slice(1), b"x" * 200_000, *(np.full(3, k) for k in range(count)), Thing()]
    received = Finds(io.BytesIO(Names.dumps(sent))).load()
    assert received[0] == "a slice" and received[1] == sent[1] and type(received[-1]) is Thing
    assert [a[0] for a in received[2:-1]] == list(range(count))


@pytest.mark.parametrize("table", [{}, copyreg.dispatch_table.copy()])
def test_a_pickler_with_a_table_of_its_class_writes_what_any_unpickler_reads(table: dict[type, Any]) -> None:
    class Own(ForkingPickler):
        dispatch_table = table

    received = there_and_back([np.arange(10_000), b"x" * 200_000, Thing()], Own)
    assert received[0].tolist() == list(range(10_000)) and received[1] == b"x" * 200_000 and type(received[2]) is Thing


def test_loads_reads_one_pickle_and_leaves_what_follows() -> None:
    shared = mp.shared.full(5, 2.0)
    for first in (7, "text", [1, {"a": None}], shared, [shared, 1]):
        message = bytes(ForkingPickler.dumps(first))
        second = bytes(ForkingPickler.dumps([shared]))
        for kind in (bytes, bytearray, memoryview):
            data = kind(message + second)
            received = ForkingPickler.loads(data)
            assert np.array_equal(received, first) if first is shared else type(received) is type(first)
            message = bytes(ForkingPickler.dumps(first))
        assert ForkingPickler.loads(second)[0].tolist() == shared.tolist()
        ForkingPickler.loads(message)


class Refused:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("refused")


def test_a_message_that_fails_closes_its_descriptors_and_no_others() -> None:
    waiting = pytest.importorskip("multiprocessing.resource_sharer", reason="needs descriptors")._resource_sharer._cache
    queue = mp.SimpleQueue()
    one, other = socket.socketpair()
    with one, other:
        queue.put([one, 1 + 1j])
        for _ in range(3):
            before = set(waiting)
            assert len(before) == 1
            with pytest.raises(ValueError, match="refused"):
                queue.put([one, other, Refused()])
            assert set(waiting) == before
        received, _ = queue.get()
        received.close()
    assert not waiting


class Sends:
    """Sends a message while it is pickled, and then refuses."""

    def __reduce__(self) -> Any:
        queue, thing = self.what  # type: ignore[attr-defined]
        queue.put(thing)
        raise ValueError("refused")


def test_a_message_that_was_sent_while_another_is_pickled_keeps_its_descriptors() -> None:
    queue, inner = mp.SimpleQueue(), Sends()
    one, other = socket.socketpair()
    with one, other:
        inner.what = queue, [one, 1 + 1j]  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="refused"):
            queue.put([other, inner])
        received, _ = queue.get()
        with received:
            received.send(b"arrived")
        assert other.recv(7) == b"arrived"
