"""An array over a tensor's memory stays valid when the tensor moves to shared memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

NBYTES = 4 << 20
#: The C library gives so much back to the system as soon as it is freed.
HUGE = 40 << 20

VIEWS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "asarray": np.asarray,
    "numpy of a slice": lambda tensor: tensor[100:].numpy(),
    "dlpack": np.from_dlpack,
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "numpy of a detached tensor": lambda tensor: tensor.detach().numpy(),
    "a view of a view": lambda tensor: tensor.numpy()[::3].reshape(-1),
}

MOVES: dict[str, Callable[[Any], Any]] = {
    "sent": lambda tensor: ForkingPickler.dumps(tensor),
    "sent in a list": lambda tensor: ForkingPickler.dumps([tensor, tensor[1:], "beside"]),
    "share_memory_": lambda tensor: tensor.share_memory_(),
    "storage.share_memory_": lambda tensor: tensor.untyped_storage().share_memory_(),
    "its storage sent": lambda tensor: ForkingPickler.dumps(tensor.untyped_storage()),
    "its parameter sent": lambda tensor: ForkingPickler.dumps(torch.nn.Parameter(tensor, requires_grad=False)),
}


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous"))


def overwrite_freed_memory() -> None:
    for _ in range(4):
        np.full(NBYTES, 9, np.uint8)
        torch.full((NBYTES,), 9, dtype=torch.uint8)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_tensor_as_it_was(strategy: str, view: str, move: str) -> None:
    tensor = torch.ones(NBYTES, dtype=torch.uint8)
    seen = VIEWS[view](tensor)
    message = MOVES[move](tensor)
    assert tensor.is_shared()
    tensor.fill_(7)
    overwrite_freed_memory()
    assert (np.asarray(seen) == 1).all()
    if isinstance(message, memoryview):
        ForkingPickler.loads(message)
    del message, tensor
    gc.collect()
    overwrite_freed_memory()
    assert (np.asarray(seen) == 1).all()


@pytest.mark.parametrize("move", ["sent", "share_memory_"])
def test_a_tensor_that_nobody_views_leaves_its_memory(strategy: str, move: str) -> None:
    tensors = [torch.ones(HUGE, dtype=torch.uint8) for _ in range(2)]
    before = private_bytes()
    messages = [MOVES[move](tensor) for tensor in tensors]
    assert private_bytes() < before - 2 * HUGE + NBYTES
    if move == "sent":
        for message in messages:
            ForkingPickler.loads(message)


def test_the_memory_before_goes_with_the_storage_and_the_last_view(strategy: str) -> None:
    before = private_bytes()
    for _ in range(2):
        tensor = torch.ones(HUGE, dtype=torch.uint8)
        seen = tensor.numpy()
        ForkingPickler.loads(ForkingPickler.dumps(tensor))
        assert seen[0] == 1
        del tensor, seen
    assert private_bytes() < before + NBYTES
