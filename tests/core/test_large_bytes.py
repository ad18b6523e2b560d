"""Bytes, bytearrays, texts and arrays of the module `array` travel through blocks from 64 KiB on, and arrive whole."""

from __future__ import annotations

import array
import errno
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.carriers import TIMEOUT, Carrier
from support.scripts import run_script, succeeded
from support.unreceivable import refuse_blocks
from support.waiting import until

import mp_all as mp
from mp_core.installation import contexts
from mp_core.messages.standard_pools import outline
from mp_core.sharing import backend
from mp_core.sharing.backend import LARGE
from mp_pool.tasks.release import release

SIZE = LARGE + 10


class Text(str):
    pass


class Bytes(bytes):
    pass


@dataclass
class Record:
    name: str
    content: bytes
    parts: list[Any]


class Fails:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


EACH = {
    "bytes": bytes(range(256)) * 300,
    "bytearray": bytearray(range(256)) * 300,
    "ascii": "a" * SIZE,
    "latin": "é" * SIZE,
    "wide": "日本" * SIZE,
    "beyond the first plane": "🙂" * SIZE,
    "half a surrogate pair": "x" * SIZE + "\ud800",
    "array": array.array("d", range(SIZE)),
    "a subclass of bytes": Bytes(SIZE),
    "a subclass of str": Text("s" * SIZE),
    "dataclass": Record("n" * SIZE, bytes(SIZE), [bytearray(SIZE), {"key": "v" * SIZE}]),
    "a large key": {"k" * SIZE: 1, b"k" * SIZE: 2},
}


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def in_flight() -> int:
    gc.collect()
    return mp.memory_stats()["in_flight_bytes"]


def test_each_kind_arrives_equal_and_of_the_same_type_through_every_channel(carrier: Carrier) -> None:
    for thing in EACH.values():
        for sent in (thing, {"in": [(1, thing)]}):
            assert same(carrier.call(tasks.echo, sent), sent)


@pytest.mark.parametrize("what", EACH)
def test_the_message_is_small_and_plain_pickle_reads_it(strategy: str, what: str) -> None:
    message = bytes(ForkingPickler.dumps(EACH[what]))
    assert len(message) < 1500
    assert same(pickle.loads(message), EACH[what])


# Small and large ones on both sides of the limit, of which several may be the same object.
SOME = [
    kind(b"q" * (LARGE + more))
    for more in (-LARGE, -1, 0, 1, 5000)
    for kind in (bytes, bytearray, lambda b: b.decode())
]
LEAVES = (
    st.sampled_from(SOME) | st.integers() | st.sampled_from([np.ones(3), np.ones(LARGE), array.array("B", SOME[9])])
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def shape(thing: Any, seen: dict[int, int]) -> Any:
    """Describe *thing* by its types, values, and which of its objects are one object."""
    if isinstance(thing, list | tuple):
        return type(thing), [shape(each, seen) for each in thing]
    if isinstance(thing, dict):
        return dict, [(key, shape(value, seen)) for key, value in thing.items()]
    number = (
        seen.setdefault(id(thing), len(seen)) if isinstance(thing, bytes | bytearray | str) and len(thing) > 9 else 0
    )
    return type(thing), number, thing.tolist() if hasattr(thing, "tolist") else thing


@given(NESTS)
def test_any_nest_arrives_with_the_same_values_types_and_repetitions(nest: Any) -> None:
    assert shape(there_and_back(nest), {}) == shape(pickle.loads(pickle.dumps(nest)), {})


@given(NESTS)
def test_any_nest_passes_through_a_queue_and_leaves_nothing_in_flight(nest: Any) -> None:
    before, queue = in_flight(), contexts.default_context.SimpleQueue()
    queue.put(nest)
    assert shape(queue.get(), {}) == shape(pickle.loads(pickle.dumps(nest)), {})
    queue.close()
    assert in_flight() == before


def test_bytes_are_copied_once_in_and_once_out(strategy: str) -> None:
    for thing in (bytes(SIZE), bytearray(SIZE), "x" * SIZE, array.array("B", bytes(SIZE)), [bytes(SIZE)] * 2):
        before = mp.memory_stats()["copied_bytes"]
        there_and_back(thing)
        assert mp.memory_stats()["copied_bytes"] - before == 2 * SIZE


def test_a_received_bytearray_is_private_to_its_receiver_and_may_be_resized(echo: Carrier) -> None:
    sent = bytearray(SIZE)
    received = echo.call(tasks.echo, sent)
    received[0] = 7
    received.extend(b"more")
    assert (sent[0], len(sent), len(received)) == (0, SIZE, SIZE + 4)


def test_a_change_after_put_is_not_in_the_message(strategy: str) -> None:
    queue = mp.SimpleQueue()
    for thing, change in ((bytearray(SIZE), bytearray.clear), (array.array("B", bytes(SIZE)), lambda a: a.append(1))):
        queue.put(thing)
        queue.put([thing, thing])
        change(thing)
        assert len(queue.get()) == SIZE
        first, second = queue.get()
        assert first is second and len(first) == SIZE
    queue.close()


def test_a_message_by_value_needs_no_library_of_ours() -> None:
    mp.set_sharing(False)
    try:
        for thing in EACH.values():
            message = bytes(ForkingPickler.dumps(thing))
            assert b"mp_core" not in message and len(message) > SIZE
            assert same(pickle.loads(message), thing)
    finally:
        mp.set_sharing(True)


def test_a_named_protocol_gives_the_pickle_of_multiprocessing_alone() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert bytes(ForkingPickler.dumps([bytes(SIZE)], protocol)) == pickle.dumps([bytes(SIZE)], protocol)


def test_a_message_that_cannot_be_pickled_leaves_nothing_in_flight(strategy: str) -> None:
    before = in_flight()
    for thing in ([bytes(SIZE), Fails()], {"a": array.array("B", bytes(SIZE)), "b": Fails()}):
        with pytest.raises(ValueError, match="not this one"):
            ForkingPickler.dumps(thing)
    assert in_flight() == before


def test_a_message_that_cannot_be_received_leaves_nothing_in_flight(strategy: str) -> None:
    class Unknown:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    for thing in ([bytes(SIZE), Unknown(), "x" * SIZE], [Unknown(), np.ones(SIZE), bytes(SIZE)]):
        before, message = in_flight(), ForkingPickler.dumps(thing)
        assert in_flight() > before
        with pytest.raises(ValueError, match="no number"):
            ForkingPickler.loads(message)
        assert in_flight() == before


@pytest.mark.parametrize("thing", [bytes(SIZE), [bytearray(SIZE)] * 2, Record("r", bytes(SIZE), [])], ids=type)
def test_a_queue_that_is_closed_unread_frees_the_memory(strategy: str, thing: Any) -> None:
    before, queue = in_flight(), mp.SimpleQueue()
    queue.put(thing)
    assert in_flight() > before
    queue.close()
    assert until(lambda: in_flight() == before)


def put_and_die(queue: Any, thing: Any) -> None:
    queue.put(thing)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("thing", [bytes(SIZE), Record("r" * SIZE, bytes(SIZE), [bytearray(SIZE)])], ids=type)
def test_a_message_outlives_its_killed_sender(ctx: Any, strategy: str, thing: Any) -> None:
    queue = ctx.SimpleQueue()
    process = ctx.Process(target=put_and_die, args=(queue, thing))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == -signal.SIGKILL
    assert same(queue.get(), thing)
    queue.close()


def receive_and_die(connection: Any) -> None:
    kept = connection.recv()
    os.kill(os.getpid(), signal.SIGKILL if kept else signal.SIGTERM)


def test_a_killed_receiver_leaves_no_memory_behind(channels: Any, strategy: str) -> None:
    ours, theirs = channels.Pipe()
    before = mp.memory_stats()["live_bytes"]
    process = channels.Process(target=receive_and_die, args=(theirs,))
    process.start()
    theirs.close()
    ours.send([bytes(10 * SIZE), bytearray(SIZE), "x" * SIZE])
    process.join(TIMEOUT)
    assert process.exitcode == -signal.SIGKILL
    assert until(lambda: (in_flight(), mp.memory_stats()["live_bytes"]) == (0, before))
    ours.close()


def test_a_receiver_that_cannot_share_takes_the_bytes_by_value(strategy: str) -> None:
    for thing in EACH.values():
        message = ForkingPickler.dumps(thing)
        refuse_blocks(errno.EMFILE)
        try:
            with warnings.catch_warnings(action="ignore"):
                assert same(ForkingPickler.loads(message), thing)
        finally:
            refuse_blocks(0)
    assert in_flight() == 0


WITHOUT_MEMORY = """
    import array, resource, warnings
    from multiprocessing.reduction import ForkingPickler
    import mp_all as mp

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for thing in (bytes(100_000), bytearray(100_000), "é" * 100_000, array.array("d", range(20_000))):
            for sent in (thing, [thing, thing]):
                assert ForkingPickler.loads(ForkingPickler.dumps(sent)) == sent
    assert [w.category.__name__ for w in caught] == ["SharedMemoryWarning"], caught
    print("all arrived")
"""


def test_where_shared_memory_has_run_out_all_arrives_with_one_warning(tmp_path: Path) -> None:
    assert "all arrived" in succeeded(run_script(tmp_path, WITHOUT_MEMORY))


def test_the_references_of_many_arrays_stay_in_the_stream_of_a_divided_message(strategy: str) -> None:
    # The pickler writes such a list in frames of more than 64 KiB.
    shared = [mp.shared.zeros(3)[1:] for _ in range(2000)]
    thing = [bytes(SIZE), {"a": tuple(shared)}, Record("r", bytes(SIZE), list(shared))]
    before, message = in_flight(), bytes(ForkingPickler.dumps(thing))
    backend.discard_unread(message)
    del message
    assert in_flight() == before


def test_messages_of_a_program_without_numpy_use_blocks_too() -> None:
    script = (
        "import sys, mp_core\n"
        "mp_core.install()\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "message = ForkingPickler.dumps({'a': [b'x' * 100_000]})\n"
        "assert len(message) < 1000 and ForkingPickler.loads(message) == {'a': [b'x' * 100_000]}\n"
        "assert 'numpy' not in sys.modules and 'mp_reductions' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT)


class Own:
    pass


def test_a_programs_own_reducer_of_arrays_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    before = table.get(array.array)
    ForkingPickler.register(array.array, lambda a: (Own, ()))
    try:
        assert type(there_and_back(array.array("B", bytes(SIZE)))) is Own
    finally:
        if before is None:
            del table[array.array]
        else:
            table[array.array] = before


# ---- the two files ---------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_a_reader_gives_the_bytes_of_all_pieces_in_order_however_it_is_asked(pieces: list[bytes], data: Any) -> None:
    stream, places, whole = b"", [], b""
    for i, piece in enumerate(pieces):
        if i % 2:
            places.append((len(stream), 8, bytearray(piece)))
        else:
            stream += piece
        whole += piece
    reader, expected = backend.PickleReader(stream, places), io.BytesIO(whole)
    while expected.tell() < len(whole):
        n = data.draw(st.integers(1, 30))
        match data.draw(st.sampled_from(["read", "readinto", "readline", "peek"])):
            case "read":
                assert bytes(reader.read(n)) == expected.read(n)
            case "readinto":
                ours, theirs = bytearray(n), bytearray(n)
                assert reader.readinto(ours) == expected.readinto(theirs)
                assert ours == theirs
            case "readline":
                assert bytes(reader.readline()) == expected.readline()
            case "peek":
                assert expected.getvalue()[expected.tell() :].startswith(bytes(reader.peek(n)))
    assert bytes(reader.read(1)) == bytes(reader.readline()) == b""


def test_bytes_that_look_like_the_beginning_of_a_piece_change_nothing() -> None:
    writer = backend.PickleWriter(None)
    parts = [b"....B" + SIZE.to_bytes(4, "little"), os.urandom(SIZE), b"\x96" + (5).to_bytes(8, "little"), b"12345"]
    for part in parts:
        writer.write(part)
    stream, places = writer.take()
    found = [(at, width, backend.rebuild_copy(handle)) for at, width, handle in places]
    assert len(found) == 1
    assert bytes(backend.PickleReader(stream, found).read(10**6)) == b"".join(parts)


def test_a_piece_outside_its_stream_is_a_damaged_message() -> None:
    for places in ([(11, 8, b"")], [(-1, 8, b"")], [(5, 8, b""), (4, 8, b"")]):
        with pytest.raises(ValueError, match="damaged"):
            backend.PickleReader(b"0123456789", places)


def test_the_outline_of_a_divided_pickle_has_empty_pieces() -> None:
    thing = [b"B" * SIZE, 7, {"a": bytearray(SIZE), "é" * SIZE: (1,)}]
    pickle.Pickler(writer := backend.PickleWriter(None), 5).dump(thing)
    stream, places = writer.take()
    assert pickle.loads(outline(stream, places)) == [b"", 7, {"a": bytearray(), "": (1,)}]
    for _, _, handle in places:
        backend.discard(handle)


def test_a_pool_releases_a_message_that_nobody_receives() -> None:
    before = in_flight()
    data = ForkingPickler.dumps([Record("r" * SIZE, bytes(SIZE), [np.ones(SIZE)]), array.array("d", range(SIZE))])
    assert in_flight() > before
    release(data)
    assert in_flight() == before
