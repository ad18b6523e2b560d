"""`run(seed=…)`: each rank has random numbers of its own, the same in each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mp_all as mp
import mp_spawn


def draw(rank: int) -> list[float]:
    return mp_spawn.rng().random(3).tolist()  # type: ignore[no-any-return]


def expected(seed: Any, rank: int) -> list[float]:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(rank,))).random(3).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", [5, (1, 2)])
def test_each_rank_has_numbers_of_its_own_and_the_same_in_each_run(start_method: str, seed: Any) -> None:
    drawn = mp.run(draw, nprocs=3, start_method=start_method, seed=seed)
    assert drawn == [expected(seed, rank) for rank in range(3)]


def test_ranks_on_other_nodes_have_those_of_their_number() -> None:
    assert mp.run(draw, nprocs=3, engine="local", seed=5) == [expected(5, rank) for rank in range(3)]


def test_a_rank_without_a_seed_names_the_remedy_and_a_wrong_seed_is_named() -> None:
    with pytest.raises(mp.ProcessRaisedException, match=r"numpy\.random\.default_rng\(\)"):
        mp.run(draw, nprocs=1)
    with pytest.raises(ValueError, match="seed must be 0 or more, not -3"):
        mp.run(draw, nprocs=1, seed=-3)
