"""Tensors, Parameters and storages go through our blocks, with torch's semantics."""

from __future__ import annotations

import importlib
import threading
import warnings
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from support import tasks
from support.carriers import Carrier
from support.scripts import run_script, succeeded

import mp_all as mp

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings(
        "ignore:TypedStorage is deprecated",
        "ignore:torch.quantize",
        "ignore:Sparse",
        "ignore:The PyTorch API of nested",
    ),
]
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
    before = mp.memory_stats()["copied_bytes"]
    shared = tensor.is_shared() and b"mp_core" in bytes(ForkingPickler.dumps(tensor.untyped_storage()))
    return shared and mp.memory_stats()["copied_bytes"] == before


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


def test_a_meta_tensor_arrives_without_memory() -> None:
    result = there_and_back(torch.empty(2, 3, device="meta"))
    assert (result.device.type, result.shape) == ("meta", (2, 3))


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


def test_memory_that_torch_has_shared_stays_torchs(echo: Carrier) -> None:
    tensor = torch.zeros(5)
    storage = tensor.untyped_storage()
    (storage._share_fd_cpu_ if mp.get_sharing_strategy() == "file_descriptor" else storage._share_filename_cpu_)()
    echo.call(add_one, tensor)
    assert tensor.tolist() == [1] * 5 and tensor.is_shared()
    assert not has_our_memory(tensor)


def train(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1


def test_a_model_in_shared_memory_is_trained_by_children(start_method: str, strategy: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).share_memory()
    before = [parameter.clone() for parameter in model.parameters()]
    ctx = mp.get_context(start_method)
    ranks = [ctx.Process(target=train, args=(model,)) for _ in range(2)]
    for rank in ranks:
        rank.start()
        rank.join(60)  # one after the other: Hogwild may lose updates
        assert rank.exitcode == 0
        rank.close()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.is_shared()
        assert torch.allclose(parameter, old + 2)


def test_memory_returns_when_the_last_tensor_is_dropped(echo: Carrier) -> None:
    before = mp.memory_stats()["live_bytes"]
    tensor = echo.call(tasks.echo, torch.ones(1 << 15))
    assert tensor.sum() == 1 << 15
    assert mp.memory_stats()["live_bytes"] == before + (4 << 15)
    del tensor
    assert mp.memory_stats()["live_bytes"] == before


def test_a_thousand_tensors_need_no_descriptor(echo: Carrier) -> None:
    tensors = [torch.full((256,), float(k)) for k in range(1000)]
    before = mp.memory_stats()
    results = echo.call(tasks.echo, tensors)
    after = mp.memory_stats()
    assert [each[-1].item() for each in results] == list(range(1000))
    assert after["descriptors"] - before["descriptors"] <= 2
    assert after["mappings"] - before["mappings"] <= 4


def test_two_threads_that_send_one_tensor_move_it_once(strategy: str) -> None:
    for _ in range(30):
        tensor = torch.zeros(1 << 16)
        messages: list[Any] = []
        barrier = threading.Barrier(2)

        def send(tensor: Any = tensor, messages: list[Any] = messages, barrier: Any = barrier) -> None:
            barrier.wait(30)
            messages.append(ForkingPickler.dumps(tensor))

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for message in messages:
            ForkingPickler.loads(message).add_(1)
        assert tensor[0] == 2 and tensor[-1] == 2


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


def test_without_memory_a_tensor_travels_by_value_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    from mp_torch import storage

    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(storage, "allocate", none)
    tensor = torch.arange(5.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        monkeypatch.setattr("mp_core.errors._told", set())
        for each in (tensor, tensor[2:], tensor.untyped_storage(), torch.eye(2).to_sparse()):
            assert repr(there_and_back(each)) == repr(each)
        assert torch.UntypedStorage._new_shared(8).nbytes() == 8
    assert [each.category for each in seen if "shared memory ran out" in str(each.message)] == [mp.SharedMemoryWarning]
    with pytest.raises(MemoryError, match="none left"):
        tensor.share_memory_()


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


KILLED = """
    import os, signal, sys
    import mp_all as mp
    import torch

    def produce(connection):
        connection.send([torch.full((20_000,), float(k)) for k in range(5)])
        os.kill(os.getpid(), signal.SIGKILL)

    def consume(connection, tensor):
        connection.send(float(tensor[0]))
        signal.pause()

    if __name__ == "__main__":
        mp.torch_install()
        ctx = mp.get_context(sys.argv[1])
        reader, writer = ctx.Pipe(False)
        producer = ctx.Process(target=produce, args=(writer,))
        producer.start()
        producer.join(50)
        assert producer.exitcode == -signal.SIGKILL
        tensors = reader.recv()
        assert [bool((t == k).all()) for k, t in enumerate(tensors)] == [True] * 5
        del tensors

        tensor = torch.ones(1 << 18)
        consumer = ctx.Process(target=consume, args=(writer, tensor))
        consumer.start()
        assert reader.poll(50) and reader.recv() == 1
        consumer.kill()
        consumer.join(50)
        assert tensor.sum() == 1 << 18
        del tensor
        from support.waiting import until
        assert until(lambda: mp.memory_stats()["live_bytes"] == 0), mp.memory_stats()
        print("intact")
"""


def test_a_killed_producer_loses_no_tensor_and_a_killed_consumer_keeps_none(
    tmp_path: Path, start_method: str, strategy: str
) -> None:
    done = run_script(
        tmp_path, KILLED, start_method, MP_SHARING_STRATEGY=strategy, PYTHONPATH=str(Path(__file__).parents[1])
    )
    assert succeeded(done) == "intact\n"


LAZY = """
    import sys
    import mp_all as mp

    def imported(connection):
        connection.send(("torch" in sys.modules, "mp_torch" in sys.modules))
        import torch
        tensor = torch.ones(4)
        connection.send(tensor)
        connection.recv()
        connection.send((tensor.is_shared(), tensor.tolist()))

    if __name__ == "__main__":
        import mp_torch
        mp_torch.install()
        ours, theirs = mp.Pipe()
        child = mp.get_context("spawn").Process(target=imported, args=(theirs,))
        child.start()
        print(*ours.recv())
        tensor = ours.recv()
        tensor += 1
        ours.send(None)
        print(*ours.recv())
        child.join()
"""


def test_a_child_that_does_not_use_torch_does_not_import_it_and_is_installed_when_it_does(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, LAZY)) == "False True\nTrue [2.0, 2.0, 2.0, 2.0]\n"


FIRST = """
    import sys
    import mp_all as mp

    def received(connection):
        assert "torch" not in sys.modules
        thing = connection.recv()
        thing[0] = 7
        connection.send((type(thing).__name__, thing.is_shared()))

    if __name__ == "__main__":
        import torch
        mp.torch_install()
        for thing in (torch.zeros(3), torch.zeros(4)[1:], torch.zeros(3).untyped_storage()):
            ours, theirs = mp.Pipe()
            child = mp.get_context("spawn").Process(target=received, args=(theirs,))
            child.start()
            ours.send(thing)
            print(*ours.recv(), int(thing[0]))
            child.join()
"""


def test_a_child_may_import_torch_because_a_tensor_arrives(tmp_path: Path) -> None:
    done = run_script(tmp_path, FIRST, timeout=100)
    assert succeeded(done) == "Tensor True 7\nTensor True 7\nUntypedStorage True 7\n"


UNCHANGED = """
    import sys
    import mp_all as multiprocessing
    import torch
    from multiprocessing.reduction import ForkingPickler
    print(b"mp_torch" in bytes(ForkingPickler.dumps(torch.ones(3))))
"""


def test_the_environment_installs_and_without_it_torch_sends_its_tensors(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, UNCHANGED, MP_TORCH="1")) == "True\n"
    assert succeeded(run_script(tmp_path, UNCHANGED)) == "False\n"
    assert succeeded(run_script(tmp_path, "import mp_torch\n" + UNCHANGED.replace("\n    ", "\n"))) == "False\n"
