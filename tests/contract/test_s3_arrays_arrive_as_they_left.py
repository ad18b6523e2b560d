"""S3: dtype, order, strides, shape and permission arrive as they left, for private and shared arrays."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from support import tasks
from support.arrays import FORMS, Make, differences
from support.carriers import Carrier

import mp_all as mp

OWNERSHIPS = pytest.mark.parametrize("make", [np.array, mp.shared.array], ids=["private", "shared"])


class Tagged(np.ndarray):
    """A subclass with an attribute of its own, pickled as NumPy's documentation shows."""

    tag = "none"

    def __array_finalize__(self, source: object) -> None:
        self.tag = getattr(source, "tag", "none")

    def __reduce__(self) -> tuple:
        rebuild, arguments, state = super().__reduce__()
        return rebuild, arguments, (*state, self.tag)

    def __setstate__(self, state: tuple) -> None:
        *state, self.tag = state
        super().__setstate__(tuple(state))


def write_zero(array: np.ndarray) -> str:
    try:
        array[...] = 0
    except ValueError as error:
        return str(error)
    return "written"


def all_differences(sent: dict, received: dict, shared: bool) -> dict[str, list[str]]:
    assert sent.keys() == received.keys()
    found = {name: differences(sent[name], received[name], shared) for name in sent}
    return {name: lines for name, lines in found.items() if lines}


@OWNERSHIPS
def test_every_form_arrives_as_it_left(carrier: Carrier, make: Make) -> None:
    sent = {name: form(make) for name, form in FORMS.items()}
    received = carrier.call(tasks.echo, sent)
    assert all_differences(sent, received, make is mp.shared.array) == {}


@OWNERSHIPS
def test_each_form_alone_in_a_message_is_seen_there_as_it_is_here(echo: Carrier, make: Make) -> None:
    for name, form in FORMS.items():
        sent = form(make)
        there, values = echo.call(tasks.describe_with_bytes, sent)
        here = tasks.describe(sent)
        received = echo.call(tasks.echo, sent)
        assert differences(sent, received, make is mp.shared.array) == [], name
        for what in ("type", "shape", "dtype", "writeable"):
            assert there[what] == here[what], f"{name}: {what}"
        assert len(values) == sent.nbytes, name


@OWNERSHIPS
@pytest.mark.parametrize("count", [10, 1 << 18], ids=["small", "large"])
def test_a_read_only_array_cannot_be_written_by_its_receiver(carrier: Carrier, make: Make, count: int) -> None:
    array = make(np.ones(count))
    array.flags.writeable = False
    assert "read-only" in carrier.call(write_zero, array)
    assert (array == 1).all()


def test_a_read_only_view_of_a_shared_array_sees_the_writes_of_its_owner(carrier: Carrier) -> None:
    base = mp.shared.zeros(5)
    view = base[1:4]
    view.flags.writeable = False
    carrier.call(tasks.keep, view)
    base[...] = 8
    assert carrier.again(tasks.kept_values) == [[8, 8, 8]]


def test_object_arrays_travel_by_pickle(carrier: Carrier) -> None:
    array = np.array([None, "text", [1, 2], {3: 4}], dtype=object)
    result = carrier.call(tasks.echo, array)
    assert result.dtype == object
    assert result.tolist() == array.tolist()
    assert not mp.is_shared(result)


def test_an_object_array_still_moves_the_arrays_inside(carrier: Carrier) -> None:
    array = np.empty(2, dtype=object)
    array[0] = mp.shared.zeros(5)
    array[1] = np.ones(1 << 18)
    result = carrier.call(tasks.echo, array)
    result[0][...] = 2
    assert array[0].tolist() == [2] * 5
    assert mp.is_shared(result[1])
    assert (result[1] == 1).all()


def test_a_structure_with_objects_travels_by_pickle(carrier: Carrier) -> None:
    array = np.array([(1, "one"), (2, None)], dtype=[("n", "i4"), ("o", "O")])
    assert carrier.call(tasks.echo, array).tolist() == array.tolist()


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this NumPy has no strings of variable length")
def test_strings_of_variable_length_travel_by_pickle(carrier: Carrier) -> None:
    array = np.array(["", "short", "long " * 1000], dtype=np.dtypes.StringDType())
    result = carrier.call(tasks.echo, array)
    assert result.dtype == array.dtype
    assert result.tolist() == array.tolist()


@pytest.mark.parametrize("count", [10, 1 << 18], ids=["small", "large"])
def test_a_subclass_keeps_its_type_and_its_attributes(carrier: Carrier, count: int) -> None:
    array = np.arange(count).view(Tagged)
    array.tag = "mine"
    result = carrier.call(tasks.echo, array)
    assert type(result) is Tagged
    assert result.tag == "mine"
    assert np.array_equal(result, array)


@pytest.mark.parametrize("count", [10, 1 << 18], ids=["small", "large"])
def test_a_record_array_and_a_masked_array_keep_their_types(carrier: Carrier, count: int) -> None:
    records = np.rec.fromarrays([np.arange(count), np.arange(count) / 2], names="a,b")
    masked = np.ma.masked_less(np.arange(count), 5)
    got_records, got_masked = carrier.call(tasks.echo, (records, masked))
    assert type(got_records) is np.recarray
    assert np.array_equal(got_records.b, records.b)
    assert type(got_masked) is np.ma.MaskedArray
    assert np.array_equal(got_masked.mask, masked.mask)
    assert np.array_equal(got_masked.compressed(), masked.compressed())


@pytest.mark.parametrize("mode", ["r+", "r"])
def test_a_memmap_is_opened_again_by_its_path(echo: Carrier, tmp_path: Path, mode: str) -> None:
    np.arange(1 << 17, dtype="<u4").tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", dtype="<u4", mode=mode, offset=4096, shape=(100, 100))[10:20, ::2]
    before = mp.memory_stats()["copied_bytes"]
    result = echo.call(tasks.echo, mapped)
    assert np.array_equal(result, mapped)
    assert result.flags.writeable == (mode == "r+")
    assert mp.memory_stats()["copied_bytes"] == before
    if mode == "r+":
        echo.call(tasks.fill, result, 7)
        assert (mapped == 7).all()


def test_a_memmap_whose_file_is_gone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(100).tofile(path)
    message = ForkingPickler.dumps(np.memmap(path, np.int64, "r"))
    path.unlink()
    with pytest.raises(mp.ReceiveError, match="its file is gone"):
        ForkingPickler.loads(message)


def test_a_memmap_without_a_file_of_its_own_travels_as_data(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(100).tofile(path)
    mapped = np.memmap(path, np.int64, "r")
    for private in (mapped + 1, np.memmap(path, np.int64, "c"), mapped[:0]):
        result = ForkingPickler.loads(ForkingPickler.dumps(private))
        assert type(result) is type(private)
        assert np.array_equal(result, private)
    upside_down = ForkingPickler.loads(ForkingPickler.dumps(mapped.reshape(10, 10)[::-2, 3:]))
    assert np.array_equal(upside_down, mapped.reshape(10, 10)[::-2, 3:])


@pytest.mark.slow
@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_more_than_two_gigabytes_arrive(echo: Carrier, make: Callable, needs_memory: Callable) -> None:
    count = (1 << 31) + 12345
    needs_memory(3 * count)
    array = make(count, dtype=np.uint8)
    array[[0, 1 << 31, -1]] = 1, 2, 3
    result = echo.call(tasks.echo, array)
    assert result.shape == (count,)
    assert result[[0, 1, 1 << 31, -1]].tolist() == [1, 0, 2, 3]
