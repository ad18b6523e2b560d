"""`ProcessContext.ajoin`: as `join`, in an event loop that goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from typing import Any

import pytest

import mp_spawn
from mp_all import SimpleQueue

WITHIN = 60


def run(coroutine: Coroutine) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, WITHIN))


async def goes_on(turns: int = 100) -> None:
    """Return when the loop has come back so often, each time from a sleep."""
    for _ in range(turns):
        await asyncio.sleep(0.001)


def nap(rank: int, seconds: float) -> None:
    time.sleep(seconds)


def fail_beside_a_stubborn_one(rank: int, ready: Any) -> None:
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready.put(None)
        time.sleep(WITHIN)
    ready.get()
    raise ZeroDivisionError


def test_ajoin_returns_as_join_does_while_the_loop_goes_on(start_method: str) -> None:
    context = mp_spawn.start_processes(nap, (0.5,), 2, join=False, start_method=start_method)

    async def main() -> list[Any]:
        assert not await context.ajoin(0.01)
        return await asyncio.gather(context.ajoin(), context.ajoin(WITHIN), goes_on(), context.ajoin())

    assert run(main()) == [True, True, None, True]


def test_ajoin_raises_as_join_does_and_ends_a_stubborn_rank_while_the_loop_goes_on() -> None:
    ready = SimpleQueue()
    context = mp_spawn.start_processes(fail_beside_a_stubborn_one, (ready,), 2, join=False, start_method="fork")

    async def main() -> list[Any]:
        joined = asyncio.create_task(context.ajoin())
        other = asyncio.create_task(context.ajoin())
        turns = 0
        while not joined.done():
            await goes_on(1)
            turns += 1
        assert turns > 1000  # the five seconds from SIGTERM to SIGKILL
        return await asyncio.gather(joined, other, context.ajoin(), return_exceptions=True)

    first, *others = run(main())
    assert isinstance(first, mp_spawn.ProcessRaisedException) and "ZeroDivisionError" in str(first)
    assert [each is first for each in others] == [True, True]
    assert not any(process.is_alive() for process in context.processes)
    ready.close()


def test_the_ranks_outlive_a_task_that_is_cancelled_in_ajoin() -> None:
    context = mp_spawn.start_processes(nap, (WITHIN,), 2, join=False, start_method="fork")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await context.ajoin()

    run(main())
    assert all(process.is_alive() for process in context.processes)
    context.terminate()
