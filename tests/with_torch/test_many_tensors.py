"""Many tensors in one message are written in C, or travel beside its pickle, with the same semantics."""

from __future__ import annotations

import sys
import threading
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
        assert b"rebuild_one" in message
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


def test_a_damaged_tensor_is_an_error_and_receives_nothing() -> None:
    from mp_torch import rebuild_one

    before = mp.memory_stats()["live_bytes"]
    message = bytes(ForkingPickler.dumps([torch.ones(10), torch.ones(10)]))
    at = [k + 2 for k in range(len(message)) if message[k : k + 2] == b"C8"]
    handles = [message[k : k + 56] for k in at]
    layout = message[at[0] + 58 : at[0] + 58 + message[at[0] + 57]]
    for some, shape in ((handles[0][:-1], layout), (handles[0], layout[:-1]), (b"", b""), (handles[0], b"")):
        with pytest.raises(ValueError, match="no layout"):
            rebuild_one(some, shape)
    with pytest.raises(ValueError, match="does not have the 40 bytes"):
        rebuild_one(handles[0], layout[:4] + (11).to_bytes(8, sys.byteorder))
    with pytest.raises(RuntimeError, match="code 99"):
        rebuild_one(handles[1], b"\x63" + layout[1:])
    with pytest.raises(mp.ReceiveError):
        rebuild_one(handles[0], layout)  # it was received above
    assert mp.memory_stats()["live_bytes"] == before


@pytest.mark.filterwarnings("ignore:.* support is experimental")
def test_each_dtype_arrives_as_itself() -> None:
    kinds = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    made = []
    for kind in sorted(kinds, key=str):
        try:
            made.append(torch.empty(3, dtype=kind))
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # torch makes none of that kind so
    plain = [tensor for tensor in made if not tensor.is_quantized]
    assert {torch.uint4, torch.float8_e4m3fn, torch.complex32} <= {tensor.dtype for tensor in plain}
    tensors = [torch.ones(1) for _ in range(MANY)] + plain
    for before, after in zip(tensors, there_and_back(tensors), strict=True):
        assert after.dtype is before.dtype and after.shape == before.shape
        assert after.untyped_storage()._cdata == before.untyped_storage()._cdata


def test_memory_that_two_storages_share_and_views_arrive() -> None:
    memory = bytearray(8)
    tensors = [torch.frombuffer(memory, dtype=torch.uint8) for _ in range(2 * MANY)]
    tensors += [torch.zeros(4)[k:] for k in range(MANY)]
    result = there_and_back(tensors)
    for before, after in zip(tensors, result, strict=True):
        assert after.untyped_storage()._cdata == before.untyped_storage()._cdata
    result[0][0] = 7
    assert tensors[0][0] == 7 and tensors[1][0] == 0  # each storage has moved, as torch moves it


@pytest.mark.usefixtures("no_memory")
def test_many_tensors_travel_by_value_when_no_memory_is_left() -> None:
    tensors = [torch.full((3,), float(k)) for k in range(MANY)]
    with pytest.warns(mp.SharedMemoryWarning, match="shared memory ran out"):
        result = there_and_back({"a": tensors})["a"]
    assert [each.tolist() for each in result] == [each.tolist() for each in tensors]
    assert not any(each.is_shared() for each in result)


def test_threads_that_send_the_same_tensors_move_each_once() -> None:
    for _ in range(10):
        tensors = [torch.zeros(100) for _ in range(200)]
        messages: list[Any] = []
        barrier = threading.Barrier(4)

        def send(tensors: Any = tensors, messages: Any = messages, barrier: Any = barrier) -> None:
            barrier.wait(30)
            messages.append(ForkingPickler.dumps(tensors))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for message in messages:
            for tensor in ForkingPickler.loads(message):
                tensor += 1
        assert all(tensor.tolist() == [4.0] * 100 for tensor in tensors)


def drop_in_threads(tensors: Any) -> float:
    """Let threads drop tensors, which release their blocks, while others do."""
    parts = [tensors[k::4] for k in range(4)]
    tensors.clear()
    threads = [threading.Thread(target=parts[k].clear) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return mp.memory_stats()["live_bytes"]


def test_memory_returns_when_threads_drop_received_tensors(echo: Carrier) -> None:
    before = mp.memory_stats()["live_bytes"]
    theirs = echo.call(drop_in_threads, [torch.ones(1000) for _ in range(400)])
    assert echo.call(drop_in_threads, [torch.ones(1000) for _ in range(400)]) == theirs
    assert mp.memory_stats()["live_bytes"] == before
