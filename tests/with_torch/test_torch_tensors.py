"""Tensors, Parameters and storages go through our blocks, with torch's semantics."""

from __future__ import annotations

import importlib
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp
from mp_core.memory.block import block_at

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(200)
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.bool, torch.float8_e5m2, torch.uint16, torch.uint64,
]  # fmt: skip


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def add_one(tensor: Any) -> None:
    with torch.no_grad():
        tensor += 1


def add_one_to_storage(storage: Any) -> None:
    torch.tensor([], dtype=torch.float32).set_(storage).add_(1)


def describe(tensor: Any) -> tuple[Any, ...]:
    kind, gradient = type(tensor).__name__, (tensor.requires_grad, tensor.is_leaf)
    return kind, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), gradient, tensor.is_shared()


def storages_of(tensors: list[Any]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def has_our_memory(tensor: Any) -> bool:
    return tensor.is_shared() and block_at(tensor.untyped_storage().data_ptr()) is not None


@pytest.mark.parametrize("count", [3, 1 << 15])
def test_a_sent_tensor_is_shared_afterwards_and_so_are_views_made_before(echo: Carrier, count: int) -> None:
    tensor = torch.zeros(count)
    view = tensor[1:3]
    assert not tensor.is_shared()
    before = mp.memory_stats()["copied_bytes"]
    echo.call(add_one, tensor)
    assert (tensor == 1).all()
    assert view.tolist() == [1, 1]
    assert tensor.is_shared() and view.is_shared()
    assert mp.memory_stats()["copied_bytes"] == before + 4 * count
    echo.call(add_one, view)
    assert tensor[:4].tolist() == [1, 2, 2, 1][: min(4, count)]
    assert mp.memory_stats()["copied_bytes"] == before + 4 * count


def test_a_tensor_goes_through_every_kind_of_channel(carrier: Carrier) -> None:
    tensor = torch.zeros(5).share_memory_()  # a forked child inherits its arguments
    carrier.call(add_one, tensor)
    assert tensor.tolist() == [1] * 5
    result = carrier.call(tasks.echo, tensor)
    assert result.untyped_storage()._cdata == tensor.untyped_storage()._cdata


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_arrives_also_when_empty(dtype: Any) -> None:
    tensor = torch.arange(6).to(dtype) if dtype != torch.float8_e5m2 else torch.arange(6.0).to(dtype)
    result = there_and_back(tensor)
    assert result.untyped_storage().tolist() == tensor.untyped_storage().tolist()
    for each in (tensor, tensor.reshape(2, 3), tensor[2:4], tensor[:0], torch.empty(0, 4, dtype=dtype), tensor[1]):
        result = there_and_back(each)
        assert (result.dtype, result.shape, result.stride()) == (dtype, each.shape, each.stride())


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", ["Tensor", "Parameter"])
def test_layout_kind_and_gradient_are_kept(echo: Carrier, kind: str, requires_grad: bool) -> None:
    base = torch.zeros(6, 8)
    for view in (base, base.t(), base[::2, 1:], base[3], base[2, 3], base.expand(2, 6, 8)[1], base[:0]):
        tensor = view.detach().requires_grad_(requires_grad)
        if kind == "Parameter":
            tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
        there = echo.call(describe, tensor)
        shared = bool(base.numel())
        assert there == describe(tensor)
        assert there[0] == kind and there[5] == (requires_grad, True) and there[6] == shared


def test_an_integer_parameter_needs_no_gradient(strategy: str) -> None:
    result = there_and_back(torch.nn.Parameter(torch.tensor(5), requires_grad=False))
    assert (type(result), result.requires_grad, result.item()) == (torch.nn.Parameter, False, 5)


def test_a_tensor_that_is_no_leaf_and_requires_grad_is_refused(strategy: str) -> None:
    leaf = torch.ones(4).requires_grad_()
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(leaf * 2)
    assert there_and_back(leaf).requires_grad


def test_hooks_are_not_sent_and_torch_warns() -> None:
    leaf = torch.ones(4).requires_grad_()
    leaf.register_hook(lambda gradient: gradient)
    with pytest.warns(UserWarning, match="hook"):
        assert there_and_back(leaf)._backward_hooks is None


def test_conjugate_and_negative_bits_arrive(echo: Carrier) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for each in (tensor.conj(), tensor.conj().imag, tensor.imag):
        result = echo.call(tasks.echo, each)
        assert (result.is_conj(), result.is_neg()) == (each.is_conj(), each.is_neg())
        assert result.tolist() == each.tolist()
        assert result.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_storages_and_typed_storages_are_shared(echo: Carrier) -> None:
    tensor = torch.zeros(6)
    storage = tensor.untyped_storage()
    echo.call(add_one_to_storage, storage)
    assert tensor.tolist() == [1] * 6
    for each in (storage, tensor.storage(), torch.FloatStorage(3)):
        result = there_and_back(each)
        assert (type(result), result._cdata) == (type(each), each._cdata)
    assert there_and_back(torch.UntypedStorage(0)).nbytes() == 0


def test_views_of_one_storage_in_one_message_are_views_of_one_storage(echo: Carrier) -> None:
    tensor = torch.randn(5, 5)
    views = [tensor, tensor[2], tensor[:, 1], tensor.t()]
    assert len(echo.call(storages_of, views)) == 1
    results = echo.call(tasks.echo, [*views, tensor.untyped_storage()])
    assert storages_of(results[:-1]) == {tensor.untyped_storage()._cdata} == {results[-1]._cdata}
    assert [each.tolist() for each in results[:-1]] == [each.tolist() for each in views]


def test_quantized_sparse_and_nested_tensors_arrive(echo: Carrier) -> None:
    per_tensor = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8)
    per_channel = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.5, 0.25]), torch.zeros(2, dtype=torch.int64), 0, torch.qint8
    )
    dense = torch.tensor([[0.0, 2.0, 0.0, 0.0], [1.0, 0.0, 0.0, 3.0]])
    sparse = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((1, 2))]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    for each in (per_tensor, per_channel, *sparse, nested):
        result = echo.call(tasks.echo, each)
        assert repr(result) == repr(each)
    assert per_tensor.is_shared()
    assert sparse[0]._values().is_shared() and sparse[1].values().is_shared()


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_plain_bytes_that_are_viewed_as_quantized_arrive_as_torch_sends_them(dtype: Any) -> None:
    plain = torch.arange(2000).to(torch.int8 if dtype is torch.qint8 else torch.uint8)
    result = there_and_back(plain.view(dtype))
    assert (result.dtype, result.shape) == (dtype, plain.shape)
    assert bytes(result.untyped_storage()) == bytes(plain.untyped_storage())


def test_a_meta_tensor_arrives_without_memory() -> None:
    result = there_and_back(torch.empty(2, 3, device="meta"))
    assert (result.device.type, result.shape) == ("meta", (2, 3))


def test_a_default_device_of_the_receiver_is_not_that_of_what_arrives() -> None:
    whole = torch.arange(6.0)
    things = [whole[1:3], torch.nn.Parameter(torch.ones(3)), torch.zeros(0), torch.zeros(3, requires_grad=True), whole]
    messages = [ForkingPickler.dumps(thing) for thing in things]
    with torch.device("meta"):
        arrived = [ForkingPickler.loads(message) for message in messages]
    for sent, got in zip(things, arrived, strict=True):
        assert got.device == sent.device
        assert got.tolist() == sent.tolist()


def test_share_memory_moves_in_place_and_keeps_views(strategy: str) -> None:
    tensor = torch.arange(10.0)
    view = tensor[4:]
    assert not tensor.is_shared()
    assert tensor.share_memory_() is tensor
    assert tensor.is_shared() and view.is_shared() and has_our_memory(tensor)
    tensor[4] = 44
    assert view[0] == 44
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(100)
    assert torch.empty(0).share_memory_().numel() == 0


def test_share_memory_of_a_storage_on_a_device_does_nothing_as_with_torch() -> None:
    class OnDevice(torch.UntypedStorage):  # type: ignore[misc]
        """As near to it as there is without one."""

        device = torch.device("cuda", 0)

    storage = OnDevice(8)
    address = storage.data_ptr()
    assert storage.share_memory_() is storage
    assert storage.data_ptr() == address


def test_memory_that_torch_has_shared_stays_torchs(echo: Carrier) -> None:
    tensor = torch.zeros(5)
    storage = tensor.untyped_storage()
    (storage._share_fd_cpu_ if mp.get_sharing_strategy() == "file_descriptor" else storage._share_filename_cpu_)()
    echo.call(add_one, tensor)
    assert tensor.tolist() == [1] * 5 and tensor.is_shared()
    assert not has_our_memory(tensor)


def test_a_queue_of_torchs_own_shares_the_same_tensors(start_method: str, strategy: str) -> None:
    tensor = torch.zeros(3).share_memory_()
    ctx = torch.multiprocessing.get_context(start_method)
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=add_one, args=(tensor,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    queue.put(tensor)
    assert queue.get().tolist() == [1] * 3
    queue.close()
    wrapped = importlib.import_module("torch.multiprocessing.queue").SimpleQueue(ctx=ctx)
    wrapped.put(tensor)
    assert wrapped.get().untyped_storage()._cdata == tensor.untyped_storage()._cdata
    wrapped._reader.close()
    wrapped._writer.close()


def test_by_value_a_tensor_arrives_as_a_copy_that_torch_alone_can_load() -> None:
    tensor = torch.arange(5.0)
    complex_ = torch.tensor([1 + 2j])
    things = [
        *(tensor, tensor[2:], torch.nn.Parameter(tensor.clone()), complex_.conj(), tensor.untyped_storage()),
        *(torch.eye(2).to_sparse(), torch.empty(0, 3), torch.quantize_per_tensor(tensor, 0.5, 1, torch.quint8)),
    ]
    mp.set_sharing(False)
    try:
        for each in things:
            message = bytes(ForkingPickler.dumps(each))
            assert b"mp_" not in message
            assert repr(ForkingPickler.loads(message)) == repr(each)
    finally:
        mp.set_sharing(True)
    assert not tensor.is_shared()


def test_either_function_sets_both_strategies() -> None:
    before = mp.get_sharing_strategy()
    try:
        for set_strategy in (mp.set_sharing_strategy, torch.multiprocessing.set_sharing_strategy):
            for name in ("file_system", "file_descriptor"):
                set_strategy(name)
                assert (mp.get_sharing_strategy(), torch.multiprocessing.get_sharing_strategy()) == (name, name)
        with pytest.raises(AssertionError, match="invalid sharing strategy"):
            torch.multiprocessing.set_sharing_strategy("none")
    finally:
        mp.set_sharing_strategy(before)


@pytest.mark.parametrize(
    ("offset", "nbytes", "start", "shape", "strides"),
    [(0, 80, 0, (11,), (1,)), (0, 80, 5, (6,), (1,)), (8, 80, 0, (6,), (1,)), (-8, 8, 0, (1,), (1,)),
     (0, 80, -1, (1,), (1,)), (0, 80, 9, (2,), (-1,)), (0, 80, 0, (2,), (1 << 61,)), (0, -1, 0, (0,), (1,))],
)  # fmt: skip
def test_a_handle_that_reaches_beyond_its_block_is_an_error(
    offset: int, nbytes: int, start: int, shape: tuple, strides: tuple
) -> None:
    from mp_torch.tensor import rebuild_tensor, rebuild_whole

    block = mp.Block(80)
    with pytest.raises((ValueError, RuntimeError)):
        rebuild_tensor((block, offset, nbytes), torch.float64, start, shape, strides, False, False, False, False)
    with pytest.raises((ValueError, RuntimeError)):
        rebuild_whole(block, torch.float64, (11,))
