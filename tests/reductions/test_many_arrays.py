"""Many small arrays in one message share a block or travel beside its pickle, and arrive as they would alone."""

from __future__ import annotations

import copyreg
import errno
import io
import pickle
import threading
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tasks
from support.carriers import Carrier
from support.unreceivable import refuse_blocks

import mp_all as mp
from mp_core.sharing import backend
from mp_reductions import _functions

MANY = 40


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def is_in(name: bytes, thing: Any) -> bool:
    """Return whether the message of *thing* calls that function."""
    message = bytes(ForkingPickler.dumps(thing))
    ForkingPickler.loads(message)
    return name in message


class Holder:
    """What has to be pickled by a pickler, as it chooses its state."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getstate__(self) -> Any:
        return self.__dict__


def private(count: int = MANY, nbytes: int = 1024) -> list[Any]:
    return [np.full(nbytes // 8, k, float) for k in range(count)]


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
dtypes = st.sampled_from(["?", "b", "H", "i", "q", "e", "f", "d", "F", "D", "g", ">i4", "M8[s]", "S3", "i4,f8"])
arrays = st.tuples(shapes, dtypes, st.sampled_from(["C", "F", "read-only", "strided", "shared"]))


def make(description: tuple[Any, ...], number: int) -> Any:
    shape, dtype, kind = description
    a = np.zeros(shape, dtype)
    a.reshape(-1).view(np.uint8)[...] = number % 200
    if kind == "shared":
        return mp.share_memory(a)
    if kind == "F":
        return np.asfortranarray(a)
    if kind == "strided" and a.ndim:
        return a[::-1]
    a.flags.writeable = kind != "read-only"
    return a


@settings(max_examples=60)
@given(st.lists(arrays, min_size=20, max_size=60), st.booleans(), st.booleans(), st.data())
def test_any_mixture_of_arrays_arrives_equal_and_the_same_object_once(
    descriptions: list[Any], nested: bool, pickled: bool, data: st.DataObject
) -> None:
    made = [make(description, k) for k, description in enumerate(descriptions)]
    again = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=5))
    sent = made + [made[k] for k in again]
    whole: Any = {"a": [sent, 1], "b": (sent[0],)} if nested else sent
    result = there_and_back(Holder(whole)).thing if pickled else there_and_back(whole)
    if nested:
        assert result["b"][0] is result["a"][0][0]
        result = result["a"][0]
    assert type(result) is list and len(result) == len(sent)
    for before, after in zip(sent, result, strict=True):
        assert (after.dtype, after.shape, after.flags.writeable) == (before.dtype, before.shape, before.flags.writeable)
        assert after.tobytes() == before.tobytes()
        assert (after.flags.c_contiguous, after.flags.f_contiguous) == (
            before.flags.c_contiguous,
            before.flags.f_contiguous,
        )
    for k, position in enumerate(again):
        assert result[len(made) + k] is result[position]


@pytest.mark.parametrize("count", [MANY, 1500])
def test_many_small_arrays_share_a_pack_with_and_without_a_pickler(echo: Carrier, count: int) -> None:
    sent = private(count)
    for thing in (sent, (1, sent), Holder(sent), Holder([{"a": a} for a in sent])):
        assert is_in(b"rebuild_from_pack", thing)
        assert is_in(b"load_out_of_band", thing) is isinstance(thing, Holder)
        result = echo.call(tasks.echo, thing)
        result = result.thing if isinstance(result, Holder) else result
        result = result[1] if type(result) is tuple else result
        assert [(a["a"] if isinstance(a, dict) else a).tolist() for a in result] == [a.tolist() for a in sent]
    assert not is_in(b"rebuild_from_pack", sent[:10]) and not is_in(b"load_out_of_band", Holder(sent[:10]))


def test_few_arrays_beyond_the_room_of_a_message_arrive_shared() -> None:
    assert [mp.is_shared(a) for a in there_and_back(private(6, 4000))] == [False, *[True] * 5]


def test_small_arrays_beyond_the_room_of_a_message_arrive_private_and_writable() -> None:
    result = there_and_back(private(200))
    assert not any(mp.is_shared(a) for a in result)
    for a in result:
        a += 1
    assert [a[0] for a in result] == [k + 1 for k in range(200)]
    assert in_flight() == 0


def test_many_shared_arrays_stay_shared(echo: Carrier) -> None:
    sent = [mp.shared.full(8, k, float) for k in range(MANY)]
    for thing in (sent, [sent, "b"], Holder(sent)):
        result = echo.call(tasks.echo, thing)
        result = result.thing if isinstance(thing, Holder) else result if thing is sent else result[0]
        result[3][0] = 99
        assert sent[3][0] == 99 and all(mp.is_shared(a) for a in result)
        sent[3][0] = 3


def test_a_block_that_is_in_the_message_too_stays_the_base_of_its_array() -> None:
    blocks = [mp.Block(64) for _ in range(MANY)]
    sent = [np.frombuffer(block) for block in blocks]
    pairs = there_and_back(list(zip(blocks, [np.ndarray((8,), float, block) for block in blocks], strict=True)))
    assert all(a.base is block for block, a in pairs)
    assert len(there_and_back(sent)) == MANY


class Boxed:
    """Pickle an array by a pickler of its own, while the message is pickled."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        ForkingPickler(file, 5).dump([self.a] * 2)
        return _unboxed, (file.getvalue(), self.a)


def _unboxed(data: bytes, a: Any) -> Any:
    return pickle.loads(data)[0].tolist(), a.tolist()


def test_a_reducer_with_a_pickler_of_its_own_gets_its_own_arrays() -> None:
    sent = private()
    result = there_and_back([*sent, *(Boxed(a) for a in sent), *(a + 0.5 for a in sent)])
    assert [a[0] for a in result[:MANY]] == list(range(MANY))
    assert [pair[0][0] for pair in result[MANY:-MANY]] == [pair[1][0] for pair in result[MANY:-MANY]]
    assert [pair[0][0] for pair in result[MANY:-MANY]] == list(range(MANY))
    assert [a[0] for a in result[-MANY:]] == [k + 0.5 for k in range(MANY)]


class Nested:
    """Receive a message of its own while it is unpickled."""

    def __init__(self, message: bytes) -> None:
        self.message = message

    def __reduce__(self) -> Any:
        return ForkingPickler.loads, (self.message,)


def test_a_message_in_a_message_has_objects_of_its_own() -> None:
    inner = bytes(ForkingPickler.dumps(Holder((0, private(MANY)))))
    result = there_and_back([*private(30), Nested(inner), *private(MANY)])
    assert [a[0] for a in result[30].thing[1]] == list(range(MANY))
    assert [a[0] for a in result[31:]] == list(range(MANY))


def test_each_thread_reads_its_own_objects() -> None:
    wrong: list[int] = []

    def run(number: int) -> None:
        sent = (number, [np.full(100, number * 1000 + k) for k in range(60)])
        for _ in range(30):
            result = there_and_back(Holder(sent)).thing
            if [int(a[-1]) for a in result[1]] != [number * 1000 + k for k in range(60)]:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


class Packed:
    """Pickle an array to bytes by a message of its own."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __reduce__(self) -> Any:
        return ForkingPickler.loads, (bytes(ForkingPickler.dumps(self.a)),)


def test_a_message_that_fails_discards_those_in_it() -> None:
    a = mp.shared.ones(1000)
    assert there_and_back([Packed(a), 1])[0][0] == 1
    for sent in (a, [a, {1}], np.ones(9000)):
        with pytest.raises(ValueError, match="not me"):
            ForkingPickler.dumps([Packed(sent), Refuses()])
    assert in_flight() == 0


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("not me")


class Fails:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ValueError("not here")


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_a_message_that_fails_on_either_side_keeps_no_memory(kind: str) -> None:
    sent = private(200) if kind == "private" else [mp.shared.ones(100) for _ in range(MANY)]
    with pytest.raises(ValueError, match="not me"):
        ForkingPickler.dumps([*sent, Refuses()])
    assert in_flight() == 0
    message = ForkingPickler.dumps([*sent, Fails()])
    with pytest.raises(ValueError, match="not here"):
        ForkingPickler.loads(message)
    assert in_flight() == 0
    backend.discard_unread(ForkingPickler.dumps(sent))
    backend.discard_unread(ForkingPickler.dumps(Holder(sent)))
    assert in_flight() == 0


@pytest.mark.parametrize("wrap", [lambda sent: sent, Holder])
def test_a_damaged_message_of_many_arrays_is_an_error_and_its_blocks_are_freed(wrap: Any) -> None:
    shared = [mp.shared.ones(100) for _ in range(MANY)]
    for share in (0.2, 0.5, 0.8, 0.99):
        message = bytes(ForkingPickler.dumps(wrap([*shared, *private(200)])))
        at = int(len(message) * share)
        with pytest.raises((mp.ReceiveError, ValueError, EOFError, pickle.UnpicklingError)):
            ForkingPickler.loads(message[:at])
        backend.discard_unread(message[at - 60 :])  # as much as was cut off
        assert in_flight() == 0


def test_what_names_no_object_or_no_bytes_of_a_pack_is_an_error() -> None:
    for number in (0, 10**6):
        with pytest.raises(ValueError, match=f"no object number {number}"):
            backend.out_of_band(number)
    stream = pickle.dumps(Holder(1))
    for objects in (b"", b"\x80\x04]\x94(K", pickle.dumps((1, 2)), [1, 2], None):
        with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
            backend.load_out_of_band(stream, objects)
    pack = bytearray(100)
    assert _functions.rebuild_from_pack(pack, 84, "d", (2,)).tolist() == [0, 0]
    for memory, offset, shape in ((pack, 85, (2,)), (pack, 2**64 - 8, (2,)), (pack, 0, (-1,)), (b"", 0, (0,))):
        with pytest.raises((ValueError, OverflowError), match="damaged"):
            _functions.rebuild_from_pack(memory, offset, "d", shape)  # type: ignore[arg-type]


class Chunk:
    """Fill the buffer that all chunks use when it is pickled, as an object that reads a file does."""

    def __init__(self, buffer: Any, number: int) -> None:
        self.buffer, self.number = buffer, number

    def __reduce__(self) -> Any:
        self.buffer[:] = self.number
        return list, ([self.buffer[:]],)


@pytest.mark.parametrize("nbytes", [1024, 1 << 17])
def test_an_array_is_copied_when_the_pickler_meets_it(nbytes: int) -> None:
    buffer = np.zeros(nbytes // 8)
    result = there_and_back([Chunk(buffer, k) for k in range(MANY)])
    assert [chunk[0][-1] for chunk in result] == list(range(MANY))
    assert in_flight() == 0


def test_a_receiver_that_cannot_share_copies_the_bytes_of_a_pack() -> None:
    for wrap in (lambda sent: sent, Holder):
        message = ForkingPickler.dumps(wrap(private(200)))
        refuse_blocks(errno.EMFILE)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # told once in a process
                result = ForkingPickler.loads(message)
        finally:
            refuse_blocks(0)
        result = result.thing if wrap is Holder else result
        assert [a[-1] for a in result] == list(range(200))


def test_a_limit_of_zero_and_messages_by_value_have_no_pack() -> None:
    before = mp.get_inline_limit()
    mp.set_inline_limit(0)
    try:
        assert all(mp.is_shared(a) for a in there_and_back(private()))
    finally:
        mp.set_inline_limit(before)
    mp.set_sharing(False)
    try:
        assert not is_in(b"rebuild_from_pack", private()) and not is_in(b"load_out_of_band", Holder(private()))
    finally:
        mp.set_sharing(True)
    assert copyreg.dispatch_table.get(np.ndarray) is None
