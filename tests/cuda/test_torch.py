"""Tensors of torch on a device arrive as with torch's own reducer; the real torch, in memory of the stub driver."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import peer as p
import pytest
from support.scripts import run_script, succeeded
from support.waiting import until
from test_failures import RACE_S, at_once

import mp_all as mp
import mp_cuda

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch has it")
adapter = pytest.importorskip("mp_cuda.libraries.adapters.torch")
stub_torch = pytest.importorskip("stub_torch")
pytestmark = pytest.mark.needs_stub


@pytest.fixture(autouse=True)
def registered(peer: p.Peer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("handles", "_bytes_over", "_index", "_device", "_stream"):
        monkeypatch.setattr(adapter, name, getattr(adapter, name))
    stub_torch.register()
    peer.call(stub_torch.register)
    yield
    mp_cuda.unregister("torch")
    peer.call(mp_cuda.unregister, "torch")


def described(tensor: Any) -> tuple[Any, ...]:
    plain = tensor.detach().resolve_conj().resolve_neg().double() if not tensor.is_complex() else tensor.detach()
    return (
        type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset(),
        tensor.requires_grad, tensor.is_leaf, tensor.grad is None, tensor.is_conj(), tensor.is_neg(), plain.tolist(),
    )  # fmt: skip


def tensors() -> Iterator[Any]:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    yield base
    yield base[1:, ::2]
    yield base.t()
    yield base[2, 3]
    yield base[:0]
    yield base.expand(2, 4, 6)
    for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64):
        yield torch.ones(3, dtype=dtype)


@pytest.mark.parametrize("tensor", list(tensors()), ids=lambda t: f"{t.dtype}{list(t.stride())}")
def test_a_tensor_of_any_layout_and_type_arrives(peer: p.Peer, tensor: Any) -> None:
    tensor = stub_torch.on_device(tensor)
    assert peer.call(described, tensor) == described(tensor)


def test_requires_grad_parameters_and_flipped_bits_arrive_as_with_torch(peer: p.Peer) -> None:
    leaf = stub_torch.on_device(torch.ones(3)).requires_grad_()
    leaf.grad = torch.ones(3)
    number = torch.nn.Parameter(stub_torch.on_device(torch.ones(3, dtype=torch.int64)), requires_grad=False)
    weight = torch.nn.Parameter(stub_torch.on_device(torch.ones(2)))
    frozen = torch.nn.Parameter(stub_torch.on_device(torch.ones(2)), requires_grad=False)
    complex_ = stub_torch.on_device(torch.tensor([1 + 2j, 3 - 4j]))
    for tensor in (leaf, number, weight, frozen, complex_.conj(), complex_.conj().imag):
        here, there = described(tensor), peer.call(described, tensor)
        assert there[:7] == here[:7]
        assert there[7]  # gradients are not sent
        assert there[8:] == here[8:]


def test_a_tensor_that_is_no_leaf_is_refused_with_the_error_of_torch() -> None:
    product = stub_torch.on_device(torch.ones(3)).requires_grad_() * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(product)
    with pytest.raises(mp_cuda.NotShareableError, match="detach"):
        mp_cuda.share(product)


def views_of_one(first: Any, second: Any, whole: Any) -> tuple[bool, bool, list[float]]:
    whole[0] = 7
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return same, first.untyped_storage() is second.untyped_storage(), first.tolist()


def test_two_views_of_one_storage_are_two_views_of_one_storage(peer: p.Peer) -> None:
    base = stub_torch.on_device(torch.zeros(6))
    assert peer.call(views_of_one, base[:2], base[1:], base) == (True, True, [7, 0])
    assert base[0] == 7  # both sides have the same memory


def test_views_that_arrive_in_two_messages_have_one_storage(peer: p.Peer) -> None:
    base = stub_torch.on_device(torch.zeros(6))
    peer.call(p.keep, "a", base[:3])
    peer.call(p.keep, "b", base[3:])
    assert peer.call(have_one_storage, "a", "b")


def test_views_that_two_threads_receive_at_once_have_one_storage(peer: p.Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    make, begun = adapter._bytes_over, []

    def waits_for_the_other(array: Any) -> Any:
        begun.append(1)
        until(lambda: len(begun) > 1, RACE_S)
        return make(array)

    monkeypatch.setattr(adapter, "_bytes_over", waits_for_the_other)
    one, two = at_once(peer.call(two_views))
    assert one.untyped_storage() is two.untyped_storage()


def two_views() -> list[bytes]:
    base = p.KEPT["base"] = stub_torch.on_device(torch.zeros(6))
    return [bytes(ForkingPickler.dumps(view)) for view in (base[:3], base[3:])]


def have_one_storage(a: str, b: str) -> bool:
    return p.KEPT[a].untyped_storage() is p.KEPT[b].untyped_storage()


def test_a_state_dict_arrives_and_loads(peer: p.Peer) -> None:
    model = torch.nn.Linear(4, 3)
    state = {name: stub_torch.on_device(tensor) for name, tensor in model.state_dict().items()}
    assert peer.call(applied, state) == model(torch.ones(1, 4)).tolist()


def applied(state: dict[str, Any]) -> Any:
    model = torch.nn.Linear(4, 3)
    model.load_state_dict(state)
    return model(torch.ones(1, 4)).tolist()


def test_a_tensor_comes_back_as_its_own_storage() -> None:
    tensor = stub_torch.on_device(torch.ones(5))
    back = ForkingPickler.loads(ForkingPickler.dumps(tensor[1:]))
    assert back.untyped_storage() is tensor.untyped_storage() and back.storage_offset() == 1


def test_share_memory_and_is_shared_stay_those_of_torch(tmp_path: Path) -> None:
    """For a tensor on a device, torch's do nothing and answer True."""
    text = """
        import torch
        import mp_cuda

        def theirs():
            storage = torch.UntypedStorage
            return torch.Tensor.share_memory_, storage.share_memory_, storage.is_shared, torch.nn.Module.share_memory

        before = theirs()
        mp_cuda.register("torch")
        print(theirs() == before)
    """
    assert succeeded(run_script(tmp_path, text)) == "True\n"


def test_tensors_of_the_host_keep_their_reducer() -> None:
    host = torch.from_numpy(mp.shared.ones(3))
    sent = bytes(ForkingPickler.dumps(host))
    assert b"mp_cuda" not in sent and ForkingPickler.loads(sent).tolist() == [1, 1, 1]
    assert b"mp_cuda" in bytes(ForkingPickler.dumps(stub_torch.on_device(host)))
    mp_cuda.ipc_collect(in_flight_older_than=0)


BOTH = """
    import warnings
    import torch
    {imports}
    import mp_torch, mp_cuda

    warnings.simplefilter("ignore")
    from multiprocessing.reduction import ForkingPickler
    import torch.multiprocessing.reductions as theirs

    def state():
        table = [ForkingPickler._extra_reducers[kind] for kind in (torch.Tensor, torch.nn.Parameter)]
        return [function.__module__.partition(".")[0] for function in (*table, theirs.reduce_tensor)]

    for steps in {steps}:
        steps()
    print(*state())
    sparse = torch.ones(3).to_sparse()
    print(ForkingPickler.loads(ForkingPickler.dumps(sparse)).to_dense().tolist())
    mp_cuda.unregister("torch")
    print(*state())
"""


@pytest.mark.parametrize("imports", ["", "import mp_all"])
@pytest.mark.parametrize("first", ["mp_torch", "mp_cuda"])
def test_tensors_of_the_host_and_of_a_device_have_one_reducer(tmp_path: Path, first: str, imports: str) -> None:
    """mp-torch's codec for tensors of the host works as long as its reducer is the registered one."""
    steps = "(mp_torch.install, lambda: mp_cuda.register('torch'))"
    steps = steps if first == "mp_torch" else steps + "[::-1]"
    program = BOTH.replace("{steps}", steps).replace("{imports}", imports)
    together, sparse, after = succeeded(run_script(tmp_path, program)).splitlines()
    assert together == "mp_torch mp_torch mp_cuda"
    assert sparse == "[1.0, 1.0, 1.0]"
    assert after == "mp_torch mp_torch torch"


def test_the_memory_of_a_tensor_is_in_use_while_a_tensor_is_on_it() -> None:
    tensor = stub_torch.on_device(torch.ones(4))
    storage = tensor.untyped_storage()
    view = tensor[1:]
    del tensor
    assert adapter.in_use(storage)
    del view
    assert not adapter.in_use(storage)
