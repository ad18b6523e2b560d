"""dask's processes on mp_all's executor."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

pytest.importorskip("dask.array", reason="dask[array] is not installed: nox -s adoption")

BEGIN = """
    import os, sys
    import dask
    import dask.array
    import numpy as np
    import mp_all as mp

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        pool = mp.ProcessPoolExecutor(2, context)
"""


def output(folder: Path, program: str, method: str, **environment: str) -> str:
    return succeeded(run_script(folder, BEGIN + program, method, **environment))


def test_a_pool_of_ours_runs_dasks_tasks(tmp_path: Path, start_method: str) -> None:
    program = """
        with pool, dask.config.set(scheduler="processes", pool=pool):
            a = dask.array.arange(4_000_000, chunks=1_000_000)
            print(int((a * 2).sum().compute()), (a + 1).compute()[-1])
    """
    assert output(tmp_path, program, start_method) == "15999996000000 4000000\n"


def test_with_the_options_blocks_come_through_shared_memory(tmp_path: Path, start_method: str, strategy: str) -> None:
    program = """
        with pool, dask.config.set(mp.dask_options(pool)):
            blocks = [dask.delayed(lambda n: np.full(500_000, n))(n) for n in range(4)]
            arrays = dask.compute(*blocks)
            print([mp.is_shared(a) for a in arrays], [int(a[-1]) for a in arrays])
            sent = dask.delayed(lambda a: (mp.is_shared(a), float(a.sum())))(np.ones(500_000))
            print(sent.compute(), int(dask.array.ones(3_000_000, chunks=1_000_000).sum().compute()))
    """
    expected = "[True, True, True, True] [0, 1, 2, 3]\n(True, 500000.0) 3000000\n"
    assert output(tmp_path, program, start_method, MP_SHARING_STRATEGY=strategy) == expected


def test_a_killed_worker_is_named_and_the_next_computation_runs(tmp_path: Path) -> None:
    program = """
        with pool, dask.config.set(mp.dask_options(pool)):
            try:
                dask.delayed(os._exit)(3).compute()
            except mp.WorkerLostError as error:
                print(error.exitcode)
            print(dask.delayed(abs)(-1).compute())
    """
    assert output(tmp_path, program, "spawn") == "3\n1\n"


def test_an_exception_of_a_task_arrives(tmp_path: Path) -> None:
    program = """
        with pool, dask.config.set(mp.dask_options(pool)):
            try:
                dask.delayed(lambda: {}["missing"])().compute()
            except KeyError as error:
                print(str(error).splitlines()[0])
    """
    assert output(tmp_path, program, "fork") == "'missing'\n"
