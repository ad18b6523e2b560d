"""What one package must do by itself, run in an environment that holds it and its dependencies only.

`nox -s "alone(mp-spawn)"` builds sdists, installs one of them into a fresh environment and runs this file there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def rank(index: int, word: str) -> None:
    assert word == "hello" and index in (0, 1)
    assert "numpy" not in sys.modules


def expect(package: str) -> None:
    siblings = {"mp_core", "mp_reductions", "mp_spawn", "mp_cuda", "mp_all"}
    brings = {
        "mp-core": {"mp_core"},
        "mp-reductions": {"mp_core", "mp_reductions"},
        "mp-spawn": {"mp_core", "mp_spawn"},
        "mp-cuda": {"mp_core", "mp_cuda"},
        "mp-all": siblings,
    }[package]
    present = {name for name in siblings if installed(name)}
    assert present == brings, f"{package} brought {sorted(present)}, expected {sorted(brings)}"
    # cuda-python brings cuda-core and with it NumPy; mp_cuda does not use it.
    assert installed("numpy") == (package in ("mp-reductions", "mp-cuda", "mp-all")), f"{package} and NumPy"
    for name in sorted(present):
        importlib.import_module(name)

    if package == "mp-spawn":
        import mp_spawn

        mp_spawn.spawn(rank, ("hello",), nprocs=2)
    if package == "mp-core":
        import mp_core

        assert mp_core.Block(10).nbytes == 10
    if package == "mp-cuda":
        import mp_cuda

        assert mp_cuda.is_available() in (True, False)
        mp_cuda.init_reductions()
        assert mp_cuda.DeviceArray and "numpy" not in sys.modules
    if package in ("mp-reductions", "mp-all"):
        shared = importlib.import_module(package.replace("-", "_")).shared
        assert shared.zeros(3).tolist() == [0, 0, 0]
    print(f"{package} stands alone: {', '.join(sorted(present))}")


if __name__ == "__main__":
    expect(sys.argv[1])
