"""Tests that need a GPU. They are skipped elsewhere; `python3 -m tools.gpu` runs them."""

from __future__ import annotations

import functools
import os
import time

import peer as p
import pytest
from support.waiting import until

import mp_cuda
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.driver import cuda_driver

pytestmark = pytest.mark.needs_gpu


def test_the_driver_reports_the_pointer_attributes_that_the_code_expects() -> None:
    array = mp_cuda.empty(1 << 20, "uint8")
    assert asked(array.ptr) == {"legacy": 1, "managed": 0, "pool": 0}
    with cuda_driver.guard(0):
        ptr = int(cuda_driver.call("cuMemAllocAsync", 1 << 20, 0))
        try:
            pooled = asked(ptr)
        finally:
            cuda_driver.call("cuMemFreeAsync", ptr, 0)
    assert pooled["pool"] and not pooled["legacy"]


def asked(ptr: int) -> dict[str, int]:
    """Ask the driver what native/driver.c asks."""
    attribute = cuda_driver.bindings().CUpointer_attribute
    with cuda_driver.guard(0):
        return {
            name: int(cuda_driver.call("cuPointerGetAttribute", attribute(number), ptr) or 0)
            for name, number in (("legacy", 10), ("managed", 8), ("pool", 17))
        }


def test_memory_of_another_process_lies_in_the_allocation_that_was_sent(peer: p.Peer) -> None:
    array = peer.call(p.make, "a", bytes(1000))
    with cuda_driver.guard(0):
        base, _ = cuda_driver.call("cuMemGetAddressRange", array.ptr)
    # Forwarding finds memory by the pointer that opening returned.
    assert int(base) <= array.ptr


def test_a_killed_receiver_leaves_the_memory_intact(mortal: p.Peer) -> None:
    array = mp_cuda.from_host(bytes(1 << 20))
    mortal.call(p.keep, "a", array)
    mortal.kill()
    assert mp_cuda.wait_released(p.WAIT_S)
    array.copy_from_host(b"x" * (1 << 20))
    assert array.copy_to_host() == b"x" * (1 << 20)


def is_orphan(array: DeviceArray) -> bool:
    return not array.producer_alive


def test_a_receiver_keeps_running_after_its_sender_was_killed(mortal: p.Peer) -> None:
    array: DeviceArray = mortal.call(p.make, "a", bytes(1 << 20))
    mortal.kill()
    assert until(functools.partial(is_orphan, array), p.WAIT_S)
    del array
    mp_cuda.ipc_collect()
    assert mp_cuda.from_host(b"alive").copy_to_host() == b"alive"


def test_thousands_of_events_and_openings_do_not_accumulate(peer: p.Peer) -> None:
    start = time.monotonic()
    for i in range(3000):
        assert peer.call(p.bytes_of, mp_cuda.from_host(bytes([i % 256]))) == bytes([i % 256])
        if i % 100 == 99:
            assert mp_cuda.wait_released(p.WAIT_S)
    print(f"3000 new arrays in {time.monotonic() - start:.2f} s")
    assert mp_cuda.ipc_stats()["pool_events"] <= 256


def test_tensors_of_real_torch_arrive(peer: p.Peer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.arange(12, device="cuda").to(dtype)[::2]
        assert peer.call(sum_of_tensor, mp_cuda.share(tensor)) == 30


def test_share_memory_of_torch_does_nothing_on_the_device(peer: p.Peer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    mp_cuda.register("torch")
    model = torch.nn.Linear(3, 2).cuda()
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    assert model.share_memory() is model
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert all(parameter.is_shared() for parameter in model.parameters())
    peer.call(p.keep, "model", dict(model.named_parameters()))
    mp_cuda.unregister("torch")


def sum_of_tensor(tensor: object) -> float:
    assert type(tensor).__name__ == "Tensor"
    return float(tensor.sum())  # type: ignore[attr-defined]


def test_arrays_of_real_cupy_arrive(peer: p.Peer) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert peer.call(sum_of_cupy, cupy.arange(12, dtype=cupy.float32)[::-2]) == 36


def sum_of_cupy(array: object) -> float:
    import cupy

    assert type(array) is cupy.ndarray
    return float(array.sum())
