"""torch, if it is installed, warmed up: what torch makes once and keeps is made before the first leak check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mp_all as mp


@pytest.fixture(scope="session", autouse=True)
def what_torch_makes_once(resources_made_once: None) -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")
    from multiprocessing.reduction import ForkingPickler

    torch.set_num_threads(1)  # its threads do not survive a fork
    strategy = mp.get_sharing_strategy()
    for name in sorted(mp.get_all_sharing_strategies()):
        mp.set_sharing_strategy(name)
        ForkingPickler.loads(ForkingPickler.dumps(torch.zeros(3)))
        ForkingPickler.loads(ForkingPickler.dumps(torch.zeros(3).untyped_storage()))
    mp.set_sharing_strategy(strategy)
    yield
