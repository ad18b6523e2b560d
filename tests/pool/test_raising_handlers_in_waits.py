"""A signal handler that raises while the program waits for results ends that wait, and keeps nothing else waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

PROGRAM = """
    import itertools, signal, sys, time
    import mp_all as mp

    class AlarmError(Exception):
        pass

    def same(item):
        return item

    WAYS = {
        "map": lambda pool, _: pool.map(same, [1, 2, 3]),
        "imap": lambda pool, _: list(pool.imap(same, [1, 2, 3])),
        "submit": lambda _, executor: executor.submit(same, 1).result(),
        "executor's map": lambda _, executor: list(executor.map(same, [1, 2, 3])),
    }
    armed = []

    def interrupt(*_):
        if armed:
            armed.clear()
            raise AlarmError

    if __name__ == "__main__":
        signal.signal(signal.SIGALRM, interrupt)
        forking = mp.get_context("fork")
        with forking.Pool(1) as pool, mp.ProcessPoolExecutor(1, mp_context=forking) as executor:
            executor.submit(same, 1).result()
            until = time.monotonic() + 2.0
            for n in itertools.count():
                try:
                    try:
                        armed.append(True)
                        signal.setitimer(signal.ITIMER_REAL, 1e-4 + n % 53 * 3e-5)
                        WAYS[sys.argv[1]](pool, executor)
                    finally:
                        armed.clear()
                except AlarmError:
                    pass
                if time.monotonic() > until:
                    break
            print(pool.apply_async(same, (5,)).get(60), executor.submit(same, 5).result(60))
"""


@pytest.mark.parametrize("way", ["map", "imap", "submit", "executor's map"])
def test_alarms_that_raise_stop_no_pool(tmp_path: Path, way: str) -> None:
    assert succeeded(run_script(tmp_path, PROGRAM, way)) == "5 5\n"
