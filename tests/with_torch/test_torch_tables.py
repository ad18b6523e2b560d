"""Many tensors in one message travel in a table beside the pickle, with the same semantics."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(200)
MANY = 40


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def add_one_to_all(tensors: Any) -> None:
    for tensor in tensors[0] if isinstance(tensors, tuple) else tensors:
        tensor += 1


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


def test_many_tensors_are_shared_afterwards(echo: Carrier) -> None:
    for wrap in (lambda tensors: tensors, lambda tensors: (tensors, "b")):
        tensors = [torch.full((3, 4), float(k)) for k in range(MANY)]
        views = [tensor[1] for tensor in tensors]
        message = bytes(ForkingPickler.dumps(wrap(tensors)))
        assert b"rebuild_tensors" in message
        ForkingPickler.loads(message)
        before = mp.memory_stats()["copied_bytes"]
        echo.call(add_one_to_all, wrap(tensors))
        assert [tensor[2, 3].item() for tensor in tensors] == [k + 1 for k in range(MANY)]
        assert all(tensor.is_shared() and view.is_shared() for tensor, view in zip(tensors, views, strict=True))
        assert mp.memory_stats()["copied_bytes"] == before


def test_a_mixture_arrives_as_it_left_and_storages_stay_one() -> None:
    base = torch.randn(8, 8)
    tensors = [torch.full((k % 5,), float(k)) for k in range(MANY)]
    tensors += [
        torch.arange(6).to(kind).reshape(2, 3) for kind in (torch.int8, torch.bfloat16, torch.bool, torch.cfloat)
    ]
    tensors += [base, base.view(64), base[2], base.t(), tensors[3], torch.tensor(5), torch.nn.Parameter(base.clone())]
    tensors += [torch.ones(3, requires_grad=True), torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag]
    for sent in (tensors, {"a": tensors}, [tensors[: -len(tensors) // 2], tensors]):
        result = there_and_back(sent)
        result = result["a"] if isinstance(sent, dict) else result if sent is tensors else result[1]
        for before, after in zip(tensors, result, strict=True):
            assert type(after) is type(before) and after.requires_grad == before.requires_grad
            assert (after.dtype, after.shape, after.stride()) == (before.dtype, before.shape, before.stride())
            assert torch.equal(after, before)
            if before.numel():
                assert after.untyped_storage()._cdata == before.untyped_storage()._cdata
        assert result[MANY + 8] is result[3]


def test_a_list_that_came_back_is_the_same_storages_and_memory_returns(echo: Carrier) -> None:
    before = mp.memory_stats()["live_bytes"]
    tensors = [torch.ones(100) for _ in range(200)]
    for _ in range(3):
        results = echo.call(tasks.echo, tensors)
        assert [r.untyped_storage()._cdata for r in results] == [t.untyped_storage()._cdata for t in tensors]
    del tensors, results
    assert mp.memory_stats()["live_bytes"] == before
    results = echo.call(tasks.echo, [torch.full((100,), float(k)) for k in range(200)])  # memory is used again
    assert [r[-1].item() for r in results] == list(range(200))


class Fails:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ValueError("not here")


def test_a_message_that_cannot_be_read_keeps_no_memory() -> None:
    message = ForkingPickler.dumps([*(torch.ones(100) for _ in range(MANY)), Fails()])
    assert in_flight() > 0
    with pytest.raises(ValueError, match="not here"):
        ForkingPickler.loads(message)
    assert in_flight() == 0


def test_a_damaged_table_is_an_error() -> None:
    from mp_torch.table import TensorTable, rebuild_tensors

    def table() -> Any:
        made = TensorTable(1)
        assert made.take_list([torch.ones(10) for _ in range(MANY)])
        return made.__reduce__()[1]

    handles, dtype, shape = table()
    assert (dtype, shape) == (torch.float32, (10,))
    with pytest.raises(RuntimeError, match="shape"):
        rebuild_tensors(handles[:58], dtype, (11,))
    with pytest.raises(mp.ReceiveError):
        rebuild_tensors(handles, dtype, shape)  # its first block was received above
    with pytest.raises(ValueError, match="damaged"):
        rebuild_tensors(handles[58:115] + b"x", dtype, shape)
    with pytest.raises(ValueError, match="damaged: 38 dtypes"):
        rebuild_tensors(handles[58:], [dtype] * (MANY - 2), shape)
    assert len(rebuild_tensors(handles[58:], dtype, shape)) == MANY - 1
