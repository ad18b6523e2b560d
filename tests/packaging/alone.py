"""Test one package by itself, in an environment with its dependencies only.

tools/installations.py makes that environment: `nox -s "alone(mp-spawn)"` from sdists, `nox -s build` from wheels.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
from typing import Any


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def rank(index: int, word: str) -> None:
    assert word == "hello" and index in (0, 1)
    assert "numpy" not in sys.modules


def negate(module: str, into: Any, out: Any) -> None:
    mp = importlib.import_module(module)
    getattr(mp, "init_reductions", lambda: None)()
    array = into.get()
    assert mp.is_shared(array)
    array *= -1
    out.put(array)


def there_and_back(module: str) -> None:
    """Send a megabyte to another process and back, through the installed shm-manager."""
    import numpy as np

    mp = importlib.import_module(module)
    mp.init_reductions()
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        into, out = context.SimpleQueue(), context.SimpleQueue()
        worker = context.Process(target=negate, args=(module, into, out))
        worker.start()
        into.put(np.arange(1 << 17, dtype=float))
        array = out.get()
        worker.join()
        assert mp.is_shared(array) and worker.exitcode == 0 and array[-1] == 1 - (1 << 17)
    print(f"NumPy {np.__version__}")


def small_things_in_tasks() -> None:
    """Send small arrays and numbers, each by a way in C of its own, through a pool."""
    import numpy as np

    import mp_all as mp

    with mp.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        assert pool.apply(np.add, (np.arange(3), 1)).tolist() == [1, 2, 3]
    dumped = mp.reduction.ForkingPickler.dumps(np.arange(3, dtype=">i2"))
    assert mp.reduction.ForkingPickler.loads(dumped).tolist() == [0, 1, 2]


def expect(package: str) -> None:
    siblings = {"mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_nodes", "mp_cuda", "mp_torch", "mp_all"}
    installs = {
        "mp-core": {"mp_core"},
        "mp-reductions": {"mp_core", "mp_reductions"},
        "mp-spawn": {"mp_core", "mp_spawn"},
        "mp-pool": {"mp_core", "mp_pool"},
        "mp-nodes": {"mp_core", "mp_spawn", "mp_pool", "mp_nodes"},
        "mp-cuda": {"mp_core", "mp_cuda"},
        "mp-torch": {"mp_core", "mp_torch"},
        "mp-all": siblings - {"mp_torch", "mp_nodes"},
    }[package]
    present = {name for name in siblings if installed(name)}
    assert present == installs, f"{package} installed {sorted(present)}, expected {sorted(installs)}"
    assert installed("numpy") == (package in ("mp-reductions", "mp-all")), f"{package} and NumPy"
    assert not installed("cuda"), f"{package} installed the CUDA bindings, which are an extra"
    for name in sorted(present):
        importlib.import_module(name)

    if package == "mp-spawn":
        import mp_spawn

        mp_spawn.spawn(rank, ("hello",), nprocs=2)
        try:
            mp_spawn.run(rank, ("hello",), nprocs=2, engine="local")
        except ModuleNotFoundError as error:
            assert "pip install mp-nodes" in str(error)
        else:
            raise AssertionError("there is code for nodes")
        line = [sys.executable, "-m", "mp_spawn", "--nnodes", "2", "--node-rank", "0", "-n", "2", "-c", "pass"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        missing = "mp-spawn: --nnodes 2 needs mp-nodes, which is not installed: pip install mp-nodes\n"
        assert (done.returncode, done.stderr) == (2, missing)
    if package == "mp-pool":
        import mp_pool

        with mp_pool.Pool(2) as pool:
            lost = pool.apply_async(os._exit, (3,))
            assert pool.map(abs, [-1, -2]) == [1, 2]
            try:
                lost.get(60)
            except mp_pool.WorkerLostError as error:
                assert error.exitcode == 3
        assert "numpy" not in sys.modules
    if package == "mp-nodes":
        import mp_pool
        import mp_spawn

        assert mp_spawn.run(divmod, (2,), nprocs=4, engine="local") == [(0, 0), (0, 1), (1, 0), (1, 1)]
        with mp_pool.Pool(2, engine="local") as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        assert "numpy" not in sys.modules
    if package == "mp-core":
        import mp_core

        assert mp_core.Block(10).nbytes == 10
    if package == "mp-cuda":
        import mp_cuda

        assert mp_cuda.is_available() in (True, False)
        mp_cuda.init_reductions()
        assert mp_cuda.DeviceArray and "numpy" not in sys.modules
    if package == "mp-torch":
        import mp_torch

        assert importlib.import_module("mp_torch._native").find_storage
        try:
            mp_torch.install()
        except ImportError as error:
            assert "pip install torch" in str(error)
        assert "torch" not in sys.modules
    if package == "mp-all":
        try:
            importlib.import_module("mp_all").torch_install()
        except ImportError as error:
            assert "pip install mp-torch" in str(error)
    if package in ("mp-reductions", "mp-all"):
        shared = importlib.import_module(package.replace("-", "_")).shared
        assert shared.zeros(3).tolist() == [0, 0, 0]
        there_and_back(package.replace("-", "_"))
    if package == "mp-all":
        small_things_in_tasks()
    print(f"{package} stands alone: {', '.join(sorted(present))}")


if __name__ == "__main__":
    expect(sys.argv[1])
