"""With torch installed, its types are sent as torch promises, and tensors over our memory share it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier
from support.scripts import run_script, succeeded

import mp_all as mp

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

LARGE = 1 << 15


def add_one(tensor: Any) -> None:
    with torch.no_grad():
        tensor += 1


def add_one_to_storage(storage: Any) -> None:
    torch.tensor([], dtype=torch.float32).set_(storage).add_(1)


def grad_of(parameter: Any) -> tuple[bool, bool, str]:
    return parameter.requires_grad, parameter.is_leaf, type(parameter).__name__


@pytest.mark.parametrize("count", [3, LARGE])
def test_a_tensor_of_torchs_own_is_shared_in_place_as_torch_does_it(echo: Carrier, count: int) -> None:
    tensor = torch.zeros(count)
    before = mp.memory_stats()["copied_bytes"]
    echo.call(add_one, tensor)
    assert (tensor == 1).all()
    assert tensor.is_shared()
    assert mp.memory_stats()["copied_bytes"] == before


def test_parameters_keep_requires_grad_and_stay_shared(echo: Carrier) -> None:
    for requires_grad in (True, False):
        parameter = torch.nn.Parameter(torch.zeros(5), requires_grad=requires_grad)
        assert echo.call(grad_of, parameter) == (requires_grad, True, "Parameter")
        echo.call(add_one, parameter)
        assert parameter.tolist() == [1] * 5


def test_a_storage_is_shared(echo: Carrier) -> None:
    tensor = torch.zeros(6)
    echo.call(add_one_to_storage, tensor.untyped_storage())
    assert tensor.tolist() == [1] * 6


@pytest.mark.parametrize("ours", [False, True], ids=["memory of torch", "our memory"])
def test_a_tensor_that_is_no_leaf_and_requires_grad_is_refused(strategy: str, ours: bool) -> None:
    leaf = (torch.from_numpy(mp.shared.zeros(4)) if ours else torch.zeros(4)).requires_grad_()
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(leaf.view(2, 2))
    assert ForkingPickler.loads(ForkingPickler.dumps(leaf)).requires_grad


def test_one_call_sets_both_strategies() -> None:
    before = mp.get_sharing_strategy()
    try:
        for name in ("file_system", "file_descriptor", "file_system"):
            mp.set_sharing_strategy(name)
            assert torch.multiprocessing.get_sharing_strategy() == name
    finally:
        mp.set_sharing_strategy(before)


def test_a_tensor_over_a_shared_array_is_that_array_on_both_sides(echo: Carrier) -> None:
    array = mp.shared.zeros((4, 6))
    tensor = torch.from_numpy(array)
    before = mp.memory_stats()["copied_bytes"]
    echo.call(tasks.keep, tensor[::2, 1:].t())
    array[...] = 7
    (result,) = echo.again(tasks.recall)
    assert (result.shape, result.stride(), result.tolist()) == ((5, 2), (1, 12), [[7, 7]] * 5)
    echo.again(add_one, result)
    assert array.sum() == 7 * 24 + 10
    assert result.data_ptr() == array.ctypes.data + 8
    assert mp.memory_stats()["copied_bytes"] == before


def test_an_array_over_such_a_tensor_is_shared_too(echo: Carrier) -> None:
    array = mp.shared.zeros(LARGE)
    tensor = echo.call(tasks.echo, torch.from_numpy(array))
    before = mp.memory_stats()["copied_bytes"]
    again = tensor.numpy()[10:20]
    assert mp.is_shared(again)
    assert not mp.is_shared(torch.zeros(3).numpy())
    echo.call(tasks.fill, again, 5)
    assert array.sum() == 50
    assert mp.memory_stats()["copied_bytes"] == before


def test_parameters_and_leaves_over_our_memory_keep_what_they_are(echo: Carrier) -> None:
    array = mp.shared.zeros(5, np.float32)
    for requires_grad in (True, False):
        parameter = torch.nn.Parameter(torch.from_numpy(array), requires_grad=requires_grad)
        assert echo.call(grad_of, parameter) == (requires_grad, True, "Parameter")
        echo.call(add_one, parameter)
    leaf = torch.from_numpy(array).requires_grad_()
    assert echo.call(grad_of, leaf) == (True, True, "Tensor")
    assert array.tolist() == [2] * 5


def test_views_of_one_base_in_one_message_share_memory_there_and_dtypes_are_kept(echo: Carrier) -> None:
    for dtype in (np.uint8, np.int16, np.float32, np.complex128, np.bool_):
        tensor = torch.from_numpy(mp.shared.zeros(30, dtype))
        whole, part, same = echo.call(tasks.echo, [tensor, tensor[10:20], tensor])
        whole[12] = 1
        assert part[2] == 1
        assert same is whole
        assert whole.dtype == tensor.dtype
        assert echo.call(tasks.echo, tensor[:0]).shape == (0,)


def test_memory_returns_when_the_last_tensor_is_dropped(echo: Carrier) -> None:
    before = mp.memory_stats()["live_bytes"]
    tensor = echo.call(tasks.echo, torch.from_numpy(mp.shared.ones(LARGE)))
    assert tensor.sum() == LARGE
    assert mp.memory_stats()["live_bytes"] == before + 8 * LARGE
    del tensor
    assert mp.memory_stats()["live_bytes"] == before


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_tensors_without_plain_memory_are_left_to_torch(strategy: str) -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(ForkingPickler.loads(ForkingPickler.dumps(sparse)).to_dense(), torch.eye(3))
    ours = torch.from_numpy(mp.shared.array(np.array([1 + 2j, 3 - 4j])))
    for tensor, way in ((ours, b"mp_all"), (ours.conj(), b"torch.multiprocessing")):
        message = bytes(ForkingPickler.dumps(tensor))
        assert way in message
        ForkingPickler.loads(message)


@pytest.mark.parametrize(
    ("offset", "nbytes", "start", "shape", "strides"),
    [(0, 80, 0, (11,), (1,)), (0, 80, 5, (6,), (1,)), (8, 80, 0, (6,), (1,)), (-8, 8, 0, (1,), (1,)),
     (0, 80, -1, (1,), (1,)), (0, 80, 9, (2,), (-1,)), (0, 80, 0, (2,), (1 << 61,))],
)  # fmt: skip
def test_a_handle_that_reaches_beyond_its_block_is_an_error(
    offset: int, nbytes: int, start: int, shape: tuple, strides: tuple
) -> None:
    from mp_all._tensors import rebuild_tensor

    with pytest.raises((ValueError, RuntimeError)):
        rebuild_tensor(torch.Tensor, mp.Block(80), offset, nbytes, torch.float64, start, shape, strides, False)


IN_ANY_ORDER = """
    import sys
    {first}
    import mp_all as mp
    assert ("torch" in sys.modules) == bool({first!r})
    mp.set_sharing_strategy("file_system")
    assert ("torch" in sys.modules) == bool({first!r})
    import torch
    import torch.multiprocessing
    from multiprocessing.reduction import ForkingPickler

    assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    tensor = torch.from_numpy(mp.shared.zeros(3))
    assert ForkingPickler.loads(ForkingPickler.dumps(tensor)).data_ptr() == tensor.data_ptr()
    assert ForkingPickler.loads(ForkingPickler.dumps(torch.ones(2))).tolist() == [1, 1]
    print("good")
"""


@pytest.mark.parametrize("first", ["import torch", ""], ids=["torch first", "torch later"])
def test_torch_may_be_imported_before_or_after(tmp_path: Path, first: str) -> None:
    assert succeeded(run_script(tmp_path, IN_ANY_ORDER.format(first=first))) == "good\n"


FIRST_IN_CHILD = """
    import sys

    def fill(connection):
        assert "mp_all" not in sys.modules and "torch" not in sys.modules
        import torch
        tensor = torch.from_numpy(connection.recv())
        tensor[0] = 5
        connection.send((tensor, torch.multiprocessing.get_sharing_strategy()))
        connection.recv()

    if __name__ == "__main__":
        import mp_all as mp
        mp.set_sharing_strategy("file_system")
        ours, theirs = mp.Pipe()
        child = mp.get_context("spawn").Process(target=fill, args=(theirs,))
        child.start()
        array = mp.shared.zeros(3)
        ours.send(array)
        tensor, strategy = ours.recv()
        tensor[1] = 6
        print(array.tolist(), strategy, int(tensor.data_ptr() == array.ctypes.data))
        ours.send(None)
        child.join()
"""


@pytest.mark.parametrize("installed", ["", "1"], ids=["", "MP_TORCH"])
def test_a_child_that_never_imports_mp_all_sends_them_as_well(tmp_path: Path, installed: str) -> None:
    done = run_script(tmp_path, FIRST_IN_CHILD, MP_TORCH=installed)
    assert succeeded(done) == "[5.0, 6.0, 0.0] file_system 1\n"


def test_torchs_own_multiprocessing_shares_the_same_tensors(start_method: str, strategy: str) -> None:
    tensor = torch.from_numpy(mp.shared.zeros(3))
    queue = torch.multiprocessing.get_context(start_method).SimpleQueue()
    child = multiprocessing.get_context(start_method).Process(target=add_one, args=(tensor,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    queue.put(tensor)
    assert queue.get().tolist() == [1] * 3
    queue.close()
