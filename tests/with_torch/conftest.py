"""torch with `mp_torch.install()` in force, from the first test of this folder on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import carriers

import mp_all as mp
from mp_core.sharing import backend
from mp_core.sharing.strategy import NAMES

# Of torch. A child that one test forks has the filters of that test, and serves the others: so all have the same.
WARNINGS = ("TypedStorage is deprecated", "torch.quantize", "Sparse", "The PyTorch API of nested")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))


@pytest.fixture(scope="session", autouse=True)
def installed(resources_made_once: None) -> None:
    """
    Install, and make what torch makes once and keeps before the first leak check.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")
    from multiprocessing.reduction import ForkingPickler

    torch.set_num_threads(1)  # its threads do not survive a fork
    mp.torch_install()
    strategy = mp.get_sharing_strategy()
    for name, share in (("file_descriptor", "_share_fd_cpu_"), ("file_system", "_share_filename_cpu_")):
        mp.set_sharing_strategy(name)
        ForkingPickler.loads(ForkingPickler.dumps(torch.zeros(3)))
        shared_by_torch = torch.zeros(3).untyped_storage()
        getattr(shared_by_torch, share)()
        ForkingPickler.loads(ForkingPickler.dumps(shared_by_torch))
    mp.set_sharing_strategy(strategy)


@pytest.fixture(scope="session")
def fleet(installed: None) -> Iterator[carriers.Fleet]:
    before, carriers.TIMEOUT = carriers.TIMEOUT, 90.0  # a child imports torch, for many seconds on a busy machine
    fleet = carriers.Fleet()
    yield fleet
    fleet.close()
    carriers.TIMEOUT = before


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch, strategy: str) -> Iterator[None]:
    """
    Let shared memory run out for tensors.
    """
    from mp_torch import _functions, storage

    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(storage, "allocate", none)
    monkeypatch.setattr(_functions, "move_storage", lambda *_: -errno.ENOSPC)
    monkeypatch.setattr("mp_core.system.errors._told", set())
    number = backend.strategy(None)
    monkeypatch.setitem(NAMES, 99, strategy)
    backend.strategy(99)  # libshm has none, so allocating from C fails
    yield
    backend.strategy(number)
