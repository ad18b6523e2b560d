"""Many small arrays in one message travel in a table beside the pickle, and arrive as they would without one."""

from __future__ import annotations

import copyreg
import errno
import io
import pickle
import struct
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
from mp_core import native
from mp_reductions import _functions

MANY = 40


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def has_table(thing: Any) -> bool:
    message = bytes(ForkingPickler.dumps(thing))
    ForkingPickler.loads(message)
    return b"load_beside" in message


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
@given(st.lists(arrays, min_size=20, max_size=60), st.booleans(), st.data())
def test_any_mixture_of_arrays_arrives_equal_and_the_same_object_once(
    descriptions: list[Any], nested: bool, data: st.DataObject
) -> None:
    made = [make(description, k) for k, description in enumerate(descriptions)]
    again = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=5))
    sent = made + [made[k] for k in again]
    result = there_and_back({"a": [sent, 1], "b": (sent[0],)} if nested else sent)
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


def test_an_empty_table_is_an_empty_list() -> None:
    assert _functions.rebuild_table(_functions.Table(0).__reduce__()[1][0]) == []


@pytest.mark.parametrize("count", [MANY, 1500])
def test_a_list_of_many_small_arrays_and_a_list_in_a_tuple_have_a_table(echo: Carrier, count: int) -> None:
    sent = private(count)
    assert has_table(sent) and has_table((1, sent)) and not has_table(sent[:10])
    for thing in (sent, (1, sent)):
        result = echo.call(tasks.echo, thing)
        result = result[1] if type(result) is tuple else result
        assert [a.tolist() for a in result] == [a.tolist() for a in sent]


def test_small_arrays_beyond_the_room_of_a_message_arrive_private_and_writable() -> None:
    result = there_and_back(private(200))
    assert not any(mp.is_shared(a) for a in result)
    for a in result:
        a += 1
    assert [a[0] for a in result] == [k + 1 for k in range(200)]
    assert in_flight() == 0


def test_shared_arrays_in_a_table_stay_shared(echo: Carrier) -> None:
    sent = [mp.shared.full(8, k, float) for k in range(MANY)]
    assert has_table(sent)
    for thing in (sent, [sent, "b"]):
        result = echo.call(tasks.echo, thing)
        result = result if thing is sent else result[0]
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


def test_a_message_in_a_message_has_a_table_of_its_own() -> None:
    inner = bytes(ForkingPickler.dumps((0, private(MANY))))
    result = there_and_back([*private(30), Nested(inner), *private(MANY)])
    assert [a[0] for a in result[30][1]] == list(range(MANY))
    assert [a[0] for a in result[31:]] == list(range(MANY))


def test_each_thread_reads_its_own_tables() -> None:
    wrong: list[int] = []

    def run(number: int) -> None:
        sent = (number, [np.full(100, number * 1000 + k) for k in range(60)])
        for _ in range(30):
            result = there_and_back(sent)
            if [int(a[-1]) for a in result[1]] != [number * 1000 + k for k in range(60)]:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


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


def test_a_damaged_table_is_an_error_and_its_blocks_are_freed() -> None:
    shared = [mp.shared.ones(100) for _ in range(MANY)]
    sent = [*shared[:20], *private(200), *shared[20:]]
    _, (data,) = _table_of(sent).__reduce__()
    for cut in (0, 3, 4, 50, len(data) - 1):
        with pytest.raises(ValueError, match="damaged"):
            _functions.rebuild_table(data[:cut])
    for change in (b"\xff\xff\xff\xff" + data[4:], data[:4] + b"\x09" + data[5:], data[:5] + b"\x01" + data[6:]):
        with pytest.raises(ValueError, match="damaged"):
            _functions.rebuild_table(change)
    with pytest.raises(mp.ReceiveError):
        _functions.rebuild_table(data)  # its first blocks were received above
    native.discard(data[-56:])  # the one that was not
    message = bytes(ForkingPickler.dumps(sent))
    at = message.index(struct.pack("<I", len(sent)))
    with pytest.raises(ValueError, match="damaged"):
        ForkingPickler.loads(message[:at] + struct.pack("<I", len(sent) + 1) + message[at + 4 :])
    for number in (0, 10**6):
        with pytest.raises(ValueError, match=f"no object number {number}"):
            native.beside(number)


def _table_of(sent: list[Any]) -> Any:
    table: Any = _functions.Table(0)
    assert table.take_list(sent)
    return table


@given(st.binary(max_size=200))
def test_random_bytes_are_no_table(data: bytes) -> None:
    try:
        assert isinstance(_functions.rebuild_table(data), list)
    except (ValueError, mp.ReceiveError):
        pass


def test_a_receiver_that_cannot_share_copies_the_bytes_of_a_pack() -> None:
    message = ForkingPickler.dumps(private(200))
    refuse_blocks(errno.EMFILE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told once in a process
            result = ForkingPickler.loads(message)
    finally:
        refuse_blocks(0)
    assert [a[-1] for a in result] == list(range(200))


def test_a_limit_of_zero_and_messages_by_value_have_no_table() -> None:
    before = mp.get_inline_limit()
    mp.set_inline_limit(0)
    try:
        assert all(mp.is_shared(a) for a in there_and_back(private()))
    finally:
        mp.set_inline_limit(before)
    mp.set_sharing(False)
    try:
        assert not has_table(private())
    finally:
        mp.set_sharing(True)
    assert copyreg.dispatch_table.get(np.ndarray) is None
