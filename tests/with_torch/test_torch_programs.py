"""Tensors in programs: killed processes, children that import torch later, and an unchanged program."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(200)


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
    assert succeeded(run_script(tmp_path, LAZY)) == "False False\nTrue [2.0, 2.0, 2.0, 2.0]\n"


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
    without_us = UNCHANGED.replace("import mp_all as multiprocessing", "import torch.multiprocessing")
    assert succeeded(run_script(tmp_path, without_us, MP_TORCH="1")) == "True\n"
    assert succeeded(run_script(tmp_path, without_us)) == "False\n"
    assert succeeded(run_script(tmp_path, "import mp_torch\n" + UNCHANGED.replace("\n    ", "\n"))) == "False\n"
