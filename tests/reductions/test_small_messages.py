"""Messages of a few atoms and arrays in tuples, lists and dicts: written and read without a pickler."""

from __future__ import annotations

import errno
import io
import pickletools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.damage import damaged, outcome
from support.readers import by_unpickler, in_c
from support.scripts import NO_DESCRIPTORS, run_script, succeeded
from support.unreceivable import refuse_blocks

import mp_all as mp
from mp_core.sharing import backend

F = mp.reduction.ForkingPickler

ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=300), st.binary(max_size=300)
)
INLINE = st.builds(np.arange, st.integers(0, 20), dtype=st.sampled_from("bHiqfdD"))


def containers(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.binary(max_size=3), st.none())
    return st.one_of(
        st.lists(leaves, max_size=5),
        st.lists(leaves, max_size=5).map(tuple),
        st.dictionaries(keys, leaves, max_size=5),
    )


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    once = containers(leaves)
    return containers(st.one_of(leaves, once, containers(st.one_of(leaves, once))))


def described(thing: Any) -> Any:
    """Return what can be compared: types and values, down to the last item."""
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.shape, thing.flags.writeable, mp.is_shared(thing), thing.tobytes()
    if isinstance(thing, dict):
        return [(described(key), described(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple):
        return type(thing), [described(item) for item in thing]
    return type(thing), repr(thing)


def written(thing: Any) -> bytes:
    data = backend.plain_pickle(thing)
    assert data is not None
    return bytes(data)


@given(nested(st.one_of(ATOMS, INLINE)))
@example(((), ((),), [], {}, [()]))
@example({"a": {"b": [np.arange(3)]}})
def test_they_arrive_as_they_left(sent: Any) -> None:
    data = backend.plain_pickle(sent)
    assume(data is not None)  # a number of seventy bits
    pickletools.dis(data, out=io.StringIO())  # the standard library finds no mistake in it
    assert described(in_c(data)) == described(by_unpickler(data)) == described(sent)


@given(nested(st.one_of(ATOMS, INLINE)), st.data())
def test_a_damaged_one_is_no_other_than_for_the_unpickler(sent: Any, choose: st.DataObject) -> None:
    data = backend.plain_pickle(sent)
    assume(data is not None)
    broken = damaged(bytes(data), choose)
    assert outcome(in_c, broken, described) == outcome(by_unpickler, broken, described)


@pytest.mark.parametrize("data", [b"\x80\x04]((et\x86.", b"\x80\x04(K\x01\x85t.", b"\x80\x04]K\x01e.", b"\x80\x04u."])
def test_an_opcode_that_reaches_below_a_mark_is_refused_as_by_the_unpickler(data: bytes) -> None:
    assert outcome(in_c, data, described) == outcome(by_unpickler, data, described)


def messages(shared: Any, large: Any) -> dict[str, Any]:
    return {
        "alone": shared,
        "private": large,
        "in a tuple": (1, shared, "x"),
        "in a dict": {"id": 7, "image": large, "mask": shared},
        "in a list of a list": [[shared, large], [large.copy()], None],
    }


@pytest.mark.parametrize("name", messages(None, np.ones(1)))
@pytest.mark.parametrize("loads", [in_c, by_unpickler], ids=["in C", "by the unpickler"])
def test_arrays_in_shared_memory_arrive_without_a_copy(strategy: str, loads: Callable[[Any], Any], name: str) -> None:
    shared, large = mp.shared.full((4, 5), 3.0), np.arange(30_000.0)
    sent = messages(shared, large)[name]
    data = written(sent)
    pickletools.dis(data, out=io.StringIO())
    got = loads(data)
    found: list[Any] = []
    collect(got, found)
    assert all(mp.is_shared(array) for array in found)
    for array in found:
        if array.shape == (4, 5):
            shared[0, 0] += 1
            assert array[0, 0] == shared[0, 0]
        else:
            np.testing.assert_array_equal(array, large)


def collect(thing: Any, into: list[Any]) -> None:
    if isinstance(thing, np.ndarray):
        into.append(thing)
    elif isinstance(thing, dict | list | tuple):
        for item in thing.values() if isinstance(thing, dict) else thing:
            collect(item, into)


def test_so_do_arrays_that_numpy_made_in_shared_memory(strategy: str) -> None:
    with mp.shared_allocator():
        made = np.zeros(5000)
    got = backend.loads(written({"made": made}))["made"]
    got[7] = 1
    assert made[7] == 1


def repeated() -> dict[str, Callable[[], Any]]:
    def one_array() -> Any:
        array = np.arange(3)
        return array, array

    def one_block() -> Any:
        array = mp.shared.zeros(6)
        return array, array.reshape(2, 3)

    def one_text() -> Any:
        text = "x" * 1000
        return text, text, np.ones(1)

    def one_list() -> Any:
        items = [1]
        return items, items

    def itself() -> Any:
        items: list[Any] = []
        items.append(items)
        return items

    def one_tuple_in_itself() -> Any:
        items: list[Any] = []
        items.append((items,))
        return items[0]

    return {f.__name__: f for f in (one_array, one_block, one_text, one_list, itself, one_tuple_in_itself)}


@pytest.mark.parametrize("make", repeated().values(), ids=repeated())
@pytest.mark.parametrize("loads", [in_c, by_unpickler], ids=["in C", "by the unpickler"])
def test_an_object_that_occurs_twice_is_one_object_there(loads: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    sent = make()
    data = backend.plain_pickle(sent)
    assert (data is None) == (make.__name__ in ("one_block", "one_tuple_in_itself"))  # the pickler has one Block for it
    got = loads(F.dumps(sent) if data is None else data)
    if len(sent) == 1:
        assert (got[0][0] if isinstance(got, tuple) else got[0]) is got
    elif isinstance(sent[0], np.ndarray) and sent[0] is not sent[1]:
        assert got[0].base is got[1].base
    else:
        assert got[0] is got[1]


def shapes(objects: list[Any]) -> list[Any]:
    """Return what each object is: the position of its first occurrence if it is one that occurred before."""
    first: dict[int, int] = {}
    return [first.setdefault(id(thing), at) for at, thing in enumerate(objects)]


def flat(thing: Any) -> list[Any]:
    """Return the objects of a message whose identity the pickle keeps, without those within a repeated one."""
    found: list[Any] = []
    seen: set[int] = set()

    def walk(each: Any) -> None:
        if isinstance(each, list | tuple | dict | np.ndarray) or (isinstance(each, str | bytes) and len(each) > 64):
            if each != () if isinstance(each, tuple) else True:
                found.append(each)
            if id(each) in seen:
                return
            seen.add(id(each))
        if isinstance(each, dict):
            for key, value in each.items():
                walk(key)
                walk(value)
        elif isinstance(each, list | tuple):
            for item in each:
                walk(item)

    walk(thing)
    return found


@given(st.data())
def test_any_objects_may_occur_again(choose: st.DataObject) -> None:
    pool: list[Any] = [np.arange(5), "t" * 70, b"b" * 70, [], {}, ("x",), np.ones(2), 1, "short"]
    for _ in range(choose.draw(st.integers(0, 6))):
        parts = [choose.draw(st.sampled_from(pool)) for _ in range(choose.draw(st.integers(0, 5)))]
        kind = choose.draw(st.sampled_from([list, tuple, dict]))
        pool.append(dict(enumerate(parts)) if kind is dict else kind(parts))
    sent = [choose.draw(st.sampled_from(pool)) for _ in range(choose.draw(st.integers(0, 60)))]
    data = backend.plain_pickle(sent)
    assume(data is not None)  # too deep
    pickletools.dis(data, out=io.StringIO())
    for got in in_c(data), by_unpickler(data):
        assert described(got) == described(sent)
        assert shapes(flat(got)) == shapes(flat(sent))


@given(st.data())
def test_damage_to_one_that_has_an_object_again_is_no_other_than_for_the_unpickler(choose: st.DataObject) -> None:
    text, items, array = "t" * 70, [1, 2], np.arange(3)
    sent = [text, items, (items, text), {text: array, 1: array}, array, [items]]
    broken = damaged(written(sent), choose)

    def compared(thing: Any) -> Any:
        try:
            return described(thing)
        except RecursionError:  # a list that damage put into itself
            return "endless"

    assert outcome(in_c, broken, compared) == outcome(by_unpickler, broken, compared)


@pytest.mark.parametrize("data", [b"\x80\x04h\x00.", b"\x80\x04\x94.", b"\x80\x04]\x94h\x01\x86.", b"\x80\x04](\x94e."])
def test_a_wrong_number_of_an_object_is_refused_as_by_the_unpickler(data: bytes) -> None:
    assert outcome(in_c, data, described) == outcome(by_unpickler, data, described)


@pytest.mark.parametrize("loads", [in_c, by_unpickler], ids=["in C", "by the unpickler"])
def test_a_message_may_have_many_objects(strategy: str, loads: Callable[[Any], Any]) -> None:
    shared = [mp.shared.full(k + 1, k) for k in range(16)]
    large = [np.full(1000, k) for k in range(300)]
    sent = {"shared": shared, "large": large, "numbers": list(range(1000)), "again": shared[7]}
    before = backend.copied_bytes(0)
    data = written(sent)
    assert backend.copied_bytes(0) - before == 300 * 8000
    got = loads(data)
    assert described(got["numbers"]) == described(sent["numbers"])
    assert got["again"] is got["shared"][7]
    for array, other in zip(shared + large, got["shared"] + got["large"], strict=True):
        np.testing.assert_array_equal(array, other)
        assert mp.is_shared(other)
    shared[12][0] = -1
    assert got["shared"][12][0] == -1
    del got, array, other
    assert {in_flight(array) for array in shared} == {0}


@pytest.mark.parametrize(
    "sent",
    [
        (np.complex64(1), np.ones(3)),
        [[[[[[[np.ones(3)]]]]]]],
        ("x" * 5000, np.ones(3)),
        ({(1, 2): 3}, np.ones(3)),
        ({frozenset()}, np.ones(3)),
    ],
    ids=["another type", "deep", "long", "a key that is no atom", "a set of sets"],
)
def test_others_take_the_pickler(sent: Any) -> None:
    assert backend.plain_pickle(sent) is None


def test_many_atoms_beside_an_array_need_no_pickler() -> None:
    sent = [*range(1000), {"texts": ["text"] * 1000}, np.ones(3)]
    for loads in in_c, by_unpickler:
        got = loads(written(sent))
        assert got[:-1] == sent[:-1] and got[-1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [np.ones, mp.shared.ones], ids=["private", "shared"])
def test_many_arrays_need_no_pickler(make: Any) -> None:
    for sent in ([make(3) for _ in range(1000)], {"a": tuple(make(3) for _ in range(100))}):
        received = backend.loads(backend.plain_pickle(sent))
        assert type(received) is type(sent) and len(received) == len(sent)


def test_nothing_is_copied_for_a_message_that_is_left_to_the_pickler() -> None:
    before = backend.copied_bytes(0)
    assert backend.plain_pickle((np.ones(100_000), {frozenset()})) is None
    assert backend.copied_bytes(0) == before


def in_flight(shared: Any) -> int:
    """Return how many messages have the memory of a shared array."""
    return int(shared.base._others())


def test_a_message_that_nobody_can_read_gives_its_memory_back(strategy: str) -> None:
    shared = mp.shared.zeros(1000)
    reader, writer = mp.Pipe(duplex=False)
    writer.send((1, shared))
    reader.recv()
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.send((1, shared))
    writer.close()
    with pytest.raises(OSError, match="closed"):
        writer.send((1, shared))
    assert in_flight(shared) == 0
    queue = mp.get_context("fork").Queue()
    queue._reader.close()
    queue._ignore_epipe = True
    queue.put((1, shared))
    assert in_flight(shared) == 0
    queue.close()
    queue.join_thread()


def test_bytes_of_the_program_are_no_message_whose_memory_is_freed(strategy: str) -> None:
    shared = mp.shared.full(100, 7.0)
    payload = bytes(F.dumps(shared))
    reader, writer = mp.Pipe(duplex=False)
    writer.send(1)
    reader.close()
    for sent in payload, (1, payload), (1, payload, np.ones(2)):
        with pytest.raises(BrokenPipeError):
            writer.send(sent)
    writer.close()
    assert F.loads(payload)[5] == 7


def test_an_array_that_was_received_before_is_an_error_and_frees_the_others(strategy: str) -> None:
    first, second = mp.shared.zeros(10), mp.shared.zeros(10)
    data = written([first, second])
    assert len(backend.loads(data)) == 2
    with pytest.raises(mp.ReceiveError):
        backend.loads(data)
    used = written(second)
    handle = used[used.index(b"C8") + 2 :][:56]
    backend.loads(used)
    data = written([first, second])
    end_of_first = data.index(b"C8") + 2 + 56
    unused = data[data.index(b"C8", end_of_first) + 2 :][:56]  # a handle may have these bytes, too
    with pytest.raises(mp.ReceiveError):
        backend.loads(data.replace(unused, handle))
    assert in_flight(first) == 0
    backend.discard(unused)
    assert in_flight(second) == 0


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_message_without_its_end_frees_what_it_has(strategy: str, cut: int) -> None:
    first, second = mp.shared.zeros(10), mp.shared.zeros(10)
    data = written([first, second])
    with pytest.raises(Exception, match=r"."):
        backend.loads(data[:-cut] + b"." * (cut == 2))
    assert in_flight(first) == in_flight(second) == 0


def test_a_process_without_descriptors_gets_private_copies_by_value(strategy: str) -> None:
    shared, large = mp.shared.zeros(10), np.arange(30_000.0)
    message, other = written((1, large)), written((1, shared))
    refuse_blocks(errno.EMFILE)
    try:
        np.testing.assert_array_equal(backend.loads(message)[1], large)
        with pytest.raises(mp.ReceiveError, match="descriptor"):
            backend.loads(other)
    finally:
        refuse_blocks(0)
    assert in_flight(shared) == 0


SHARED_BEFORE = """
    import resource, warnings
    import numpy as np
    import mp_all as mp
    from mp_core.sharing import backend

    shared = mp.shared.zeros(1000)
    reader, writer = mp.Pipe()
    writer.send(shared)
    reader.recv()
"""
LEFT_TO_THE_PICKLER = """
    try:
        while True:
            held.append(mp.shared.empty(1 << 21))
    except MemoryError:
        pass
    assert backend.plain_pickle((shared, np.zeros(1 << 21))) is None
    print(shared.base._others())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = mp.reduction.ForkingPickler.dumps((shared, np.ones(1 << 21)))
    got = mp.reduction.ForkingPickler.loads(data)
    got[0][5] = 1
    print(shared[5], got[1].sum() == 1 << 21, shared.base._others(), caught[0].category.__name__)
"""


def test_without_memory_the_whole_message_takes_the_pickler(tmp_path: Path) -> None:
    program = SHARED_BEFORE + NO_DESCRIPTORS + LEFT_TO_THE_PICKLER
    assert succeeded(run_script(tmp_path, program)).split() == ["0", "1.0", "True", "0", "SharedMemoryWarning"]


def test_threads_that_change_a_message_meanwhile_break_no_process(strategy: str) -> None:
    large = [np.full(200_000, k) for k in range(4)]  # to copy them releases the GIL
    message: dict[Any, Any] = {"items": list(large)}
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            message["items"].append(None)
            message["more"] = 1
            message["items"].pop()
            message.pop("more", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            data = backend.plain_pickle(message)
            if data is not None:
                arrays = [item for item in backend.loads(data)["items"] if item is not None]
                assert [array[-1] for array in arrays] == [0, 1, 2, 3]
    finally:
        done.set()
        thread.join()


def test_a_traced_program_pickles_all_memory_in_dumps() -> None:
    backend.only_atoms(True)
    try:
        assert backend.plain_pickle((1, mp.shared.zeros(3))) is None
        assert backend.plain_pickle((1, 2)) is not None
    finally:
        backend.only_atoms(False)
