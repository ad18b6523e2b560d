"""torch's own tests of torch.multiprocessing, on our contexts and blocks: what they see holds after `install()`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script, succeeded

import mp_all as mp

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(200)


def fill(queue: Any, event: Any) -> None:
    data = queue.get()
    data[0][:] = 4
    event.set()


def send_views(queue: Any, event: Any, kind: type) -> None:
    tensors = [torch.ones(5, 5).to(kind), torch.zeros(5, 5, dtype=kind)]
    queue.put(tensors)
    queue.put(tensors)
    event.wait(60)
    queue.put([tensor.tolist() for tensor in tensors])


def fill_one(buffer: Any) -> None:
    buffer.fill_(buffer[0, 0].item() + 10)


class Inherits(mp.Process):
    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.tensor = tensor
        self.daemon = True

    def run(self) -> None:
        self.tensor.add_(3)


def add_to_variable(queue: Any, ready: Any, done: Any, requires_grad: bool) -> None:
    variable = queue.get()
    ready.set()
    assert variable.requires_grad == requires_grad and variable.is_leaf
    variable.data[:] = variable.data + 1
    done.set()


def end(child: Any) -> None:
    child.join(60)
    assert child.exitcode == 0
    child.close()


def test_a_child_fills_a_sent_tensor_again_and_again(strategy: str) -> None:
    ctx = mp.get_context("fork")
    queue, event = ctx.Queue(), ctx.Event()

    def once() -> None:
        event.clear()
        data = [torch.zeros(5, 5), torch.zeros(5, 5)[:, 4]]
        child = ctx.Process(target=fill, args=(queue, event))
        child.start()
        queue.put(data)
        assert event.wait(60)
        assert (data[0] == 4).all() and (data[1] == 0).all()
        end(child)

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        once()
    assert len(os.listdir("/proc/self/fd")) == before
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("kind", [torch.float32, torch.int64], ids=str)
def test_a_tensor_that_a_child_made_and_sent_twice_is_one_storage_and_shared(
    start_method: str, strategy: str, kind: Any
) -> None:
    ctx = mp.get_context(start_method)
    queue, event = ctx.Queue(), ctx.Event()
    child = ctx.Process(target=send_views, args=(queue, event, kind))
    child.start()
    first, second = queue.get(timeout=60), queue.get(timeout=60)
    for one, two in zip(first, second, strict=True):
        assert one.untyped_storage()._cdata == two.untyped_storage()._cdata
    first[0].fill_(7)
    assert (second[0] == 7).all()
    event.set()
    seen = queue.get(timeout=60)
    assert seen[0] == first[0].tolist() and seen[1] == first[1].tolist()
    end(child)
    queue.close()
    queue.join_thread()


def test_a_pool_fills_buffers(start_method: str, strategy: str) -> None:
    buffers = [torch.full((2, 2), float(k)) for k in range(4)]
    with mp.get_context(start_method).Pool(2) as pool:
        pool.map_async(fill_one, buffers).get(60)
    for k, buffer in enumerate(buffers):
        assert (buffer == k + 10).all() and buffer.is_shared()


def test_a_subclass_of_process_inherits_a_tensor(strategy: str) -> None:
    tensor = torch.zeros(5, 5).share_memory_()
    child = Inherits(tensor)
    child.start()
    end(child)
    assert (tensor == 3).all()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_variable_is_shared_and_keeps_its_gradient_rules(start_method: str, requires_grad: bool) -> None:
    ctx = mp.get_context(start_method)
    queue, ready, done = ctx.Queue(), ctx.Event(), ctx.Event()
    variable = torch.arange(1.0, 26).view(5, 5).requires_grad_(requires_grad)
    child = ctx.Process(target=add_to_variable, args=(queue, ready, done, requires_grad))
    child.start()
    queue.put(variable)
    assert ready.wait(60) and done.wait(60)
    assert torch.equal(variable.data, torch.arange(1.0, 26).view(5, 5) + 1)
    assert variable.grad is None and variable.is_shared()
    end(child)
    queue.close()
    queue.join_thread()


AUTOGRAD = """
    import sys
    import torch
    import mp_all as mp

    def backward():
        torch.set_num_threads(1)
        a = torch.rand(10, requires_grad=True)
        (a * a).sum().backward()

    def child(connection):
        try:
            backward()
        except RuntimeError as error:
            connection.send(str(error))
        else:
            connection.send("good")

    if __name__ == "__main__":
        mp.torch_install()
        backward()
        ctx = mp.get_context(sys.argv[1])
        reader, writer = ctx.Pipe(False)
        process = ctx.Process(target=child, args=(writer,))
        process.start()
        print(reader.recv() if reader.poll(60) else "nothing")
        process.join(60)
"""


def test_autograd_after_a_fork_is_torchs_business_and_fine_in_a_spawned_child(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, AUTOGRAD, "spawn", timeout=100)) == "good\n"
    plain = AUTOGRAD.replace("mp.torch_install()", "").replace(
        "import mp_all as mp", "import torch.multiprocessing as mp"
    )
    (tmp_path / "plain").mkdir()
    expected = succeeded(run_script(tmp_path / "plain", plain, "fork", timeout=100))
    assert succeeded(run_script(tmp_path, AUTOGRAD, "fork", timeout=100)) == expected
