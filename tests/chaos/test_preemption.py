"""Programs that lose the processor in the worst places give the same results, and none of them hangs.

`nox -s chaos` plays for minutes; MP_CHAOS has the seconds, and MP_CHAOS_SEED the first seed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from support.preemption import built, needs_preemption, play

import mp_all as mp

SCENES = [
    "executor",
    "fan_in",
    "fan_out",
    "joined_queue",
    "locks",
    "manager",
    "ping_pong",
    "pool",
    "ranks",
    "select",
    "short_workers",
    "standard_executor",
    "standard_pool",
    "terminated_pool",
]


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a preempted program."""
    return built(tmp_path_factory.mktemp("preempt"))


@needs_preemption
@pytest.mark.timeout(700)
@pytest.mark.parametrize("scene", SCENES)
def test_a_preempted_program_gives_the_same_results(scene: str, preempted: dict[str, str], strategy: str) -> None:
    chance = random.Random(os.environ.get("MP_CHAOS_SEED") or time.time_ns())
    method = chance.choice(mp.get_all_start_methods())
    preempt = f"{chance.randrange(1 << 31)},25,20"
    print(scene, method, preempt)
    play(preempted, scene, method, preempt, strategy)


@needs_preemption
@pytest.mark.skipif("MP_CHAOS" not in os.environ, reason="takes minutes: nox -s chaos")
@pytest.mark.timeout(0)
def test_any_program_gives_the_same_results_for_minutes(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ["MP_CHAOS"])
    environment = built(tmp_path)
    seed = int(os.environ.get("MP_CHAOS_SEED") or time.time_ns() % (1 << 31))
    played = 0
    while time.monotonic() < end:
        chance = random.Random(seed)
        scene, method = chance.choice(SCENES), chance.choice(mp.get_all_start_methods())
        strategy = chance.choice(sorted(mp.get_all_sharing_strategies()))
        preempt = f"{seed},{chance.choice([3, 6, 12, 40, 200])},{chance.choice([1, 5, 20, 60])}"
        print(scene, method, strategy, preempt, flush=True)
        play(environment, scene, method, preempt, strategy)
        seed, played = seed + 1, played + 1
    assert played > 0
