"""A sent array arrives as the same memory, with the same shape and type."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler

import numpy as np
import peer as p
import pytest
from device import Stub

import mp_cuda
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.driver import cuda_driver


def view(base: DeviceArray, shape: tuple[int, ...], dtype: str, offset: int = 0, **how: object) -> DeviceArray:
    return DeviceArray(base.ptr + offset, shape, dtype_of(dtype), base.device, owner=base, **how)  # type: ignore[arg-type]


def test_both_processes_see_the_writes_of_either(peer: p.Peer) -> None:
    array = mp_cuda.from_host(bytes(range(16)))
    peer.call(p.keep, "a", array)
    assert peer.call(p.content, "a") == bytes(range(16))
    peer.call(p.write, "a", b"x" * 16)
    assert array.copy_to_host() == b"x" * 16
    array.copy_from_host(b"y" * 16)
    assert peer.call(p.content, "a") == b"y" * 16


@pytest.mark.needs_stub
def test_sharing_allocates_nothing(peer: p.Peer, stub: Stub) -> None:
    array = mp_cuda.from_host(b"1234")
    before = stub.counters()["allocs"]
    peer.call(p.keep, "a", array)
    assert stub.counters()["allocs"] == before


def test_an_array_of_another_process_is_used_here(peer: p.Peer) -> None:
    array = peer.call(p.make, "a", b"from there")
    assert array.is_imported and array.producer_alive
    assert array.copy_to_host() == b"from there"
    array.copy_from_host(b"from here!")
    assert peer.call(p.content, "a") == b"from here!"


def test_memory_sent_and_dropped_at_once_stays_valid_in_its_receiver(peer: p.Peer) -> None:
    for i in range(5):
        peer.call(p.keep, f"a{i}", mp_cuda.from_host(bytes([i]) * 1000))
    for i in range(5):
        assert peer.call(p.content, f"a{i}") == bytes([i]) * 1000


@pytest.mark.parametrize(("first", "last"), [("base", "part"), ("part", "base")])
def test_views_of_one_allocation_are_views_of_one_allocation_there(peer: p.Peer, first: str, last: str) -> None:
    base = mp_cuda.from_host(bytes(100))
    peer.call(p.keep, "base", base)
    peer.call(p.keep, "part", view(base, (10,), "|u1", 50))
    assert peer.call(p.address, "part") == peer.call(p.address, "base") + 50
    assert peer.call(p.stats)["mappings"] == 1
    peer.call(p.write, "part", b"0123456789")
    assert base.copy_to_host()[50:60] == b"0123456789"
    peer.call(p.drop, first)
    assert peer.call(p.content, last)[-50:][:10] == b"0123456789"
    assert peer.call(p.stats)["mappings"] == 1
    peer.call(p.drop, last)
    assert peer.call(p.stats)["mappings"] == 0


@pytest.mark.needs_stub
def test_an_allocation_sent_a_thousand_times_is_opened_once(peer: p.Peer, stub: Stub) -> None:
    """The arrays are whole and partial, kept and dropped at once; one array keeps the allocation open."""
    array = mp_cuda.from_host(bytes(range(250)))
    before = stub.counters()["opens"]
    peer.call(p.keep, "first", array)
    for i in range(0, 1000, 4):
        peer.call(p.keep, f"a{i % 10}", array)
        peer.call(p.keep, f"b{i % 10}", view(array, (1 + i % 100,), "|u1", i % 150))
        assert peer.call(p.bytes_of, view(array, (1,), "|u1", i // 4)) == bytes([i // 4])
        peer.begin(p.keep, f"c{i % 10}", view(array, (2,), "<i2", i % 100, strides=(4,)))
        peer.answer()
    assert stub.counters()["opens"] == before + 1


@pytest.mark.needs_stub
def test_an_allocation_without_arrays_is_closed_and_opened_again(peer: p.Peer, stub: Stub) -> None:
    """If it stayed open, the sender could not free it."""
    array = mp_cuda.from_host(b"again")
    before = stub.counters()
    for i in range(1, 4):
        peer.call(p.keep, "a", array)
        peer.call(p.drop, "a")
        now = stub.counters()
        assert now["opens"] - before["opens"] == now["closes"] - before["closes"] == i
        assert mp_cuda.wait_released(p.WAIT_S)


def test_small_allocations_in_one_block_of_the_driver_stay_distinct(peer: p.Peer) -> None:
    arrays = [mp_cuda.from_host(bytes([i]) * 5) for i in range(5)]
    for i, array in enumerate(arrays):
        peer.call(p.keep, f"a{i}", array)
    assert [peer.call(p.content, f"a{i}") for i in range(5)] == [bytes([i]) * 5 for i in range(5)]


def test_an_array_arrives_on_the_device_it_was_sent_from(peer: p.Peer) -> None:
    if mp_cuda.device_count() < 2:
        pytest.skip("needs two devices")
    array = mp_cuda.from_host(b"second", device=1)
    assert peer.call(p.described, array) == ((6,), (1,), "uint8", False, 1, b"second")


def test_the_current_device_does_not_matter_to_the_receiver(peer: p.Peer) -> None:
    if mp_cuda.device_count() < 2:
        pytest.skip("needs two devices")
    for device in 0, 1:
        arrays = [mp_cuda.from_host(bytes([device, i]), device=device) for i in range(5)]
        messages = [pickle.dumps(mp_cuda.share(array)) for array in arrays]
        got = peer.call(loaded_with_current, 1 - device, messages)
        assert got == (1 - device, [(device, bytes([device, i])) for i in range(5)])


def loaded_with_current(device: int, messages: list[bytes]) -> tuple[int, list[tuple[int, bytes]]]:
    with cuda_driver.guard(device):
        arrays = [pickle.loads(message) for message in messages]
        content = [(array.device, array.copy_to_host()) for array in arrays]
        return cuda_driver.current_device(), content


def test_a_new_allocation_at_a_reused_address_is_another_allocation(peer: p.Peer) -> None:
    seen: set[int] = set()
    for i in range(50):
        array = mp_cuda.from_host(bytes([i]) * 4096)
        reused = array.ptr in seen
        seen.add(array.ptr)
        assert peer.call(p.bytes_of, array) == bytes([i]) * 4096
        if reused and i >= 3:
            return
        del array
        # The memory is freed by a thread, a moment after the last receiver has released it.
        assert mp_cuda.wait_released(p.WAIT_S)
        mp_cuda.ipc_collect()
    pytest.fail("the driver reused no address")


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_arrays_arrive_and_keep_nothing_alive(peer: p.Peer, dtype: str, shape: tuple[int, ...]) -> None:
    array = mp_cuda.empty(shape, dtype, device=0)
    message = bytes(ForkingPickler.dumps(array))
    assert mp_cuda.ipc_stats()["live_sends"] == 0
    assert ForkingPickler.loads(message).shape == shape
    assert peer.call(p.described, array)[:3] == (array.shape, array.strides, dtype)


@pytest.mark.parametrize(
    ("short", "name"), [("f4", "float32"), ("i8", "int64"), ("u1", "uint8"), ("b1", "bool"), ("c16", "complex128")]
)
def test_a_dtype_may_be_given_by_numpys_short_name(short: str, name: str) -> None:
    assert str(mp_cuda.empty(10, short, device=0).dtype) == str(dtype_of(name)) == name


def test_arrays_of_different_types_share_an_allocation(peer: p.Peer) -> None:
    base = mp_cuda.from_host(bytes(range(64)))
    for dtype in ["<f8", "<i4", "|u1", "<c8", "|b1", "bfloat16", ">i2", "|S4"] * 2:
        size = dtype_of(dtype).itemsize
        got = peer.call(p.described, view(base, (64 // size,), dtype))
        assert got[2] == str(dtype_of(dtype))
        assert got[5] == bytes(range(64))


NUMBERS = np.arange(24, dtype="<i4").reshape(2, 3, 4)


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), slice(None), slice(None, None, 2)),
        (slice(None, None, -1), slice(None), slice(None, None, -3)),
        (1, slice(1, None)),
        (slice(None), 1),
        (1, 2, 3),
        (1, ..., None),
    ],
    ids=str,
)
def test_strides_of_every_kind_arrive(peer: p.Peer, index: object) -> None:
    base = mp_cuda.from_host(NUMBERS)
    expected = NUMBERS[index]  # type: ignore[index]
    offset = np.asarray(expected).__array_interface__["data"][0] - NUMBERS.__array_interface__["data"][0]
    expected = NUMBERS[index] if isinstance(expected, np.ndarray) else np.asarray(expected)  # type: ignore[index]
    if expected.base is None and expected.ndim == 0:
        offset = (1 * 12 + 2 * 4 + 3) * 4
    array = view(base, expected.shape, "<i4", offset, strides=expected.strides)
    shape, strides, _, _, _, data = peer.call(p.described, array)
    assert (shape, strides) == (expected.shape, expected.strides)
    assert data == expected.tobytes()


def test_a_row_repeated_by_a_stride_of_zero_arrives(peer: p.Peer) -> None:
    base = mp_cuda.from_host(np.arange(3, dtype="<i2"))
    array = view(base, (2, 3), "<i2", strides=(0, 2))
    assert peer.call(p.described, array)[5] == np.array([[0, 1, 2]] * 2, "<i2").tobytes()


def test_a_read_only_array_stays_read_only(peer: p.Peer) -> None:
    base = mp_cuda.from_host(b"fixed")
    array = view(base, (5,), "|u1", readonly=True)
    peer.call(p.keep, "a", array)
    with pytest.raises(ValueError, match="read-only"):
        peer.call(p.write, "a", b"other")


def test_fields_of_a_structured_type_arrive(peer: p.Peer) -> None:
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("n", "<i4"), ("x", "<f8")])
    array = mp_cuda.from_host(records)
    peer.call(p.keep, "a", array)
    back = peer.call(p.give, "a")
    assert back.__cuda_array_interface__["descr"] == [("n", "<i4"), ("x", "<f8")]
    assert back.copy_to_host() == records.tobytes()


def test_received_in_its_own_process_an_array_is_the_same_memory() -> None:
    array = mp_cuda.from_host(b"same")
    back = ForkingPickler.loads(ForkingPickler.dumps(view(array, (2,), "|u1", 2)))
    assert back.ptr == array.ptr + 2 and not back.is_imported
    address = array.ptr
    del array
    mp_cuda.ipc_collect()
    assert back.ptr == address + 2 and back.copy_to_host() == b"me"


def test_an_array_is_sent_on_and_returns_to_its_own_process(peer: p.Peer, third: p.Peer) -> None:
    array = mp_cuda.from_host(b"around")
    peer.call(p.keep, "a", array)
    third.call(p.keep, "a", peer.call(p.give, "a"))
    back = third.call(p.give, "a")
    assert back.ptr == array.ptr and not back.is_imported


class Foreign:
    """An array of a library that supports only the CUDA array interface."""

    def __init__(self, ptr: int, nbytes: int, **more: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (ptr, False), "version": 3, "strides": None, "stream": None
        } | more  # fmt: skip


def allocated(function: str, *args: object) -> int:
    with cuda_driver.guard(0):
        return int(cuda_driver.call(function, *args))


def test_managed_memory_is_refused_by_name() -> None:
    ptr = allocated("cuMemAllocManaged", 100, 1)
    try:
        with pytest.raises(mp_cuda.NotShareableError, match=r"managed memory.*fallback='copy'"):
            mp_cuda.share(Foreign(ptr, 100))
    finally:
        with cuda_driver.guard(0):
            cuda_driver.call("cuMemFree", ptr)


def test_pinned_memory_is_refused_by_name() -> None:
    ptr = allocated("cuMemAllocHost", 100)
    try:
        with pytest.raises(mp_cuda.NotShareableError, match="pinned memory of the host"):
            mp_cuda.share(Foreign(ptr, 100))
    finally:
        with cuda_driver.guard(0):
            cuda_driver.call("cuMemFreeHost", ptr)


def test_memory_of_a_stream_ordered_pool_is_refused_by_name_or_copied_when_asked(peer: p.Peer) -> None:
    ptr = allocated("cuMemAllocAsync", 6, 0)
    array = DeviceArray(ptr, (6,), dtype_of("|u1"), 0)
    array.copy_from_host(b"pooled")
    try:
        with pytest.raises(mp_cuda.NotShareableError, match=r"cudaMallocAsync.*ipc_enabled=True"):
            mp_cuda.share(Foreign(ptr, 6))
        copy = mp_cuda.share(Foreign(ptr, 6), fallback="copy")
        array.copy_from_host(b"change")
        assert peer.call(p.bytes_of, copy) == b"pooled"
    finally:
        with cuda_driver.guard(0):
            cuda_driver.call("cuMemFreeAsync", ptr, 0)


@contextmanager
def virtual_memory(pieces: int, exportable: bool) -> Iterator[tuple[int, int]]:
    """Map pieces of memory side by side, like torch's expandable segments. Yield (pointer, bytes of a piece)."""
    d = cuda_driver.bindings()
    how = d.CUmemAllocationProp()
    how.type = d.CUmemAllocationType(1)
    how.location.type, how.location.id = d.CUmemLocationType(1), 0
    how.requestedHandleTypes = d.CUmemAllocationHandleType(int(exportable))
    access = d.CUmemAccessDesc()
    access.location.type, access.location.id = d.CUmemLocationType(1), 0
    access.flags = d.CUmemAccess_flags(3)
    with cuda_driver.guard(0):
        piece = cuda_driver.call("cuMemGetAllocationGranularity", how, d.CUmemAllocationGranularity_flags(0))
        start = int(cuda_driver.call("cuMemAddressReserve", pieces * piece, 0, 0, 0))
        made = [cuda_driver.call("cuMemCreate", piece, how, 0) for _ in range(pieces)]
        for i, memory in enumerate(made):
            cuda_driver.call("cuMemMap", start + i * piece, piece, 0, memory, 0)
        cuda_driver.call("cuMemSetAccess", start, pieces * piece, [access], 1)
    yield start, piece
    with cuda_driver.guard(0):
        for i, memory in enumerate(made):
            cuda_driver.call("cuMemUnmap", start + i * piece, piece)
            cuda_driver.call("cuMemRelease", memory)
        cuda_driver.call("cuMemAddressFree", start, pieces * piece)


@pytest.mark.parametrize("exportable", [False, True])
def test_virtual_memory_is_refused_by_name_or_copied_when_asked(peer: p.Peer, exportable: bool) -> None:
    with virtual_memory(1, exportable) as (ptr, _):
        array = DeviceArray(ptr, (7,), dtype_of("|u1"), 0)
        array.copy_from_host(b"virtual")
        with pytest.raises(mp_cuda.NotShareableError, match=r"virtual memory.*expandable_segments:False.*'copy'"):
            mp_cuda.share(Foreign(ptr, 7))
        copy = mp_cuda.share(Foreign(ptr, 7), fallback="copy")
        array.copy_from_host(b"changed")
        assert peer.call(p.bytes_of, copy) == b"virtual"


def test_an_array_over_two_pieces_of_virtual_memory_is_refused_or_copied_whole(peer: p.Peer) -> None:
    with virtual_memory(2, exportable=True) as (ptr, piece):
        array = DeviceArray(ptr + piece - 3, (6,), dtype_of("|u1"), 0)
        array.copy_from_host(b"across")
        with pytest.raises(mp_cuda.NotShareableError, match=r"3 bytes beyond.*expandable_segments:False.*'copy'"):
            mp_cuda.share(array)
        assert peer.call(p.bytes_of, mp_cuda.share(array, fallback="copy")) == b"across"


def test_a_pointer_unknown_to_cuda_is_refused() -> None:
    buffer = ctypes.create_string_buffer(100)
    with pytest.raises(mp_cuda.NotShareableError, match="not memory that CUDA knows"):
        mp_cuda.share(Foreign(ctypes.addressof(buffer), 100))


def test_an_array_that_reaches_beyond_its_allocation_is_refused() -> None:
    array = mp_cuda.empty(100, "uint8")
    with pytest.raises(mp_cuda.NotShareableError, match="20 bytes beyond its allocation of 100"):
        mp_cuda.share(view(array, (110,), "|u1", 10))


def test_masks_forbidden_streams_and_other_objects_are_refused() -> None:
    array = mp_cuda.empty(4, "uint8")
    with pytest.raises(mp_cuda.NotShareableError, match="mask"):
        mp_cuda.as_device_array(Foreign(array.ptr, 4, mask=object()))
    with pytest.raises(ValueError, match="stream as 0"):
        mp_cuda.as_device_array(Foreign(array.ptr, 4, stream=0))
    with pytest.raises(TypeError, match="list is not a device array"):
        mp_cuda.as_device_array([1, 2])
    with pytest.raises(TypeError, match="copy_to_host"):
        __import__("pickle").dumps(array)


def test_copies_check_sizes_and_read_only_buffers() -> None:
    array = mp_cuda.empty((2, 3), "<i2")
    with pytest.raises(ValueError, match="12 bytes and the buffer 11"):
        array.copy_from_host(bytes(11))
    with pytest.raises(ValueError, match="read-only"):
        array.copy_to_host(bytes(12))
    out = np.empty((2, 3), "<i2")
    array.copy_from_host(np.arange(6, dtype="<i2").reshape(2, 3))
    assert array.copy_to_host(out) is out
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
