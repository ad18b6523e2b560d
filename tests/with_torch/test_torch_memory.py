"""The memory of tensors: models that children train, what returns, threads, and memory that has run out."""

from __future__ import annotations

import gc
import threading
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(200)


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


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


def described(model: Any) -> list[tuple[Any, ...]]:
    return [(type(each), each.requires_grad, each.is_shared(), each.data_ptr()) for each in model.parameters()]


def test_a_model_in_shared_memory_comes_back_with_the_same_memory(echo: Carrier, strategy: str) -> None:
    model = torch.nn.Linear(3, 4).share_memory()
    model.bias.requires_grad_(False)
    echo.call(train, model)
    back = echo.call(tasks.echo, model)
    assert described(back) == described(model)
    assert all(shared for _, _, shared, _ in described(model))
    train(back)
    assert torch.equal(back.weight, model.weight)


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


@pytest.mark.parametrize("size", [1 << 16, 1 << 20])  # the copy of the larger one gives up the GIL
def test_two_threads_that_send_one_tensor_move_it_once(strategy: str, size: int) -> None:
    for _ in range(30):
        tensor = torch.zeros(size)
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


class Sends:
    """
    Garbage that sends a tensor when it is collected.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.messages, self.itself = messages, self

    def __del__(self) -> None:
        self.messages.append(ForkingPickler.dumps(torch.ones(1 << 18)))


def test_a_finalizer_may_send_a_tensor_while_another_one_is_moved() -> None:
    messages: list[Any] = []
    before = gc.get_threshold()
    gc.set_threshold(1)  # so it is called between any two lines, also those of the reducer
    try:
        for _ in range(20):
            Sends(messages)
            for tensor in torch.ones(1 << 18), torch.ones(4, 4)[1:]:
                assert bool((there_and_back((tensor, {1}))[0] == 1).all())
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(messages) == 20
    for message in messages:
        assert ForkingPickler.loads(message).sum() == 1 << 18


@pytest.mark.usefixtures("no_memory")
def test_without_memory_a_tensor_travels_by_value_and_a_warning_says_so(strategy: str) -> None:
    tensor = torch.arange(5.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for each in (tensor, tensor[2:], tensor.untyped_storage(), torch.eye(2).to_sparse()):
            assert repr(there_and_back(each)) == repr(each)
        assert torch.UntypedStorage._new_shared(8).nbytes() == 8
    assert [each.category for each in seen if "shared memory ran out" in str(each.message)] == [mp.SharedMemoryWarning]
    with pytest.raises(MemoryError, match="20 bytes of shared memory"):
        tensor.share_memory_()
