"""A signal handler that interrupts a submit and ends the pool: nothing hangs, and each future is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

PROGRAM = """
    import random, signal, sys, time
    import mp_all as mp

    ENDS = {
        "shutdown": lambda executor: executor.shutdown(),
        "cancel": lambda executor: executor.shutdown(cancel_futures=True),
        "kill_workers": lambda executor: executor.kill_workers(),
        "terminate_workers": lambda executor: executor.terminate_workers(),
    }

    def submit(executor, futures):
        try:
            while True:
                futures.append(executor.submit(abs, -1))
        except RuntimeError:
            pass  # it has been shut down

    if __name__ == "__main__":
        end, chance = ENDS[sys.argv[1]], random.Random(5)
        for _ in range(15):
            executor, futures = mp.ProcessPoolExecutor(2, mp.get_context("fork")), []
            executor.submit(abs, -1).result(60)
            signal.signal(signal.SIGALRM, lambda *_: end(executor))
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.01))
            submit(executor, futures)
            executor.shutdown()  # waits, as nothing is interrupted now
            assert all(future.done() for future in futures), [future for future in futures if not future.done()]
            assert sys.argv[1] != "shutdown" or all(future.result() == 1 for future in futures)
"""


@pytest.mark.parametrize("end", ["shutdown", "cancel", "kill_workers", "terminate_workers"])
@pytest.mark.timeout(120)
def test_an_executor_is_ended_by_a_handler_that_interrupts_submit(tmp_path: Path, end: str) -> None:
    succeeded(run_script(tmp_path, PROGRAM, end))


POOL = """
    import random, signal
    import mp_all as mp

    if __name__ == "__main__":
        chance = random.Random(5)
        for _ in range(15):
            pool, results = mp.get_context("fork").Pool(2), []
            pool.apply(abs, (-1,))
            signal.signal(signal.SIGALRM, lambda *_: pool.terminate())
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.01))
            try:
                while True:
                    results.append(pool.apply_async(abs, (-1,)))
            except ValueError:
                pass  # it has been terminated
            pool.join()
            assert all(result.ready() for result in results)
"""


@pytest.mark.timeout(120)
def test_a_pool_is_terminated_by_a_handler_that_interrupts_apply_async(tmp_path: Path) -> None:
    succeeded(run_script(tmp_path, POOL))
