"""Published libraries, as they are on PyPI, with their import of multiprocessing changed: `nox -s programs`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.scripts import run_script

REDIRECT = Path(__file__).parents[1] / "cpython"
METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])

JOBLIB = """
    import sys

    import redirect

    redirect.install("joblib")

    import joblib
    import numpy as np

    import mp_all as mp

    def work(array, factor):
        return factor * array, float(array.sum())

    if __name__ == "__main__":
        from joblib import _multiprocessing_helpers

        assert _multiprocessing_helpers.mp is mp, "joblib was not changed"
        mp.set_start_method(sys.argv[1])
        arrays = [np.full(100_000, k, float) for k in range(6)]
        for backend in ["multiprocessing", mp.get_context(sys.argv[1]), "loky"]:
            for limit in ["100K", None]:  # above it, joblib itself writes arrays into files
                parallel = joblib.Parallel(n_jobs=2, backend=backend, max_nbytes=limit)
                results = parallel(joblib.delayed(work)(array, 2) for array in arrays)
                assert [total for _, total in results] == [100_000.0 * k for k in range(6)]
                assert all((got == 2 * sent).all() for (got, _), sent in zip(results, arrays))
        print("well")
"""

MPIRE = """
    import sys

    import redirect

    redirect.install("mpire")

    import mpire
    import mpire.context
    import numpy as np

    import mp_all as mp

    def work(array, factor):
        return factor * array

    def in_place(shared, start):
        shared[start : start + 10] += 1

    if __name__ == "__main__":
        assert mpire.context.mp is mp, "mpire was not changed"
        arrays = [np.full(100_000, k, float) for k in range(6)]
        with mpire.WorkerPool(n_jobs=2, start_method=sys.argv[1]) as pool:
            jobs = [(array, 3) for array in arrays]
            whole = pool.map(work, jobs, chunk_size=1)  # mpire joins arrays into one, unless it is told not to
            assert (whole == 3 * np.concatenate(arrays)).all()
            results = pool.map(work, jobs, chunk_size=1, concatenate_numpy_output=False)
            assert all((got == 3 * sent).all() for got, sent in zip(results, arrays))
            assert all(mp.is_shared(got) for got in results)
            lazily = sum(float(got[0]) for got in pool.imap_unordered(work, jobs))
            assert lazily == 45, lazily
            try:
                pool.map(work, [(None, None)])
            except TypeError:
                pass
            else:
                raise AssertionError("an exception in a worker was lost")
        counts = mp.shared.zeros(100)
        with mpire.WorkerPool(n_jobs=2, start_method=sys.argv[1], shared_objects=counts) as pool:
            pool.map(in_place, range(0, 100, 10))
        assert (counts == 1).all()
        print("well")
"""

PEBBLE = """
    import concurrent.futures
    import sys
    import time

    import redirect

    redirect.install("pebble")

    import numpy as np
    import pebble
    import pebble.pool.process

    import mp_all as mp

    def work(array):
        return 2 * array

    def hang(array):
        time.sleep(300)

    if __name__ == "__main__":
        assert pebble.pool.process.multiprocessing is mp, "pebble was not changed"
        arrays = [np.full(100_000, k, float) for k in range(6)]
        with pebble.ProcessPool(max_workers=2, context=mp.get_context(sys.argv[1])) as pool:
            results = list(pool.map(work, arrays, timeout=60).result())
            assert all((got == 2 * sent).all() for got, sent in zip(results, arrays))
            assert all(mp.is_shared(got) for got in results)
            try:
                pool.schedule(hang, args=(arrays[1],), timeout=0.5).result(60)
            except concurrent.futures.TimeoutError:
                pass
            else:
                raise AssertionError("what hangs was not ended")
            assert (pool.schedule(work, args=(arrays[2],)).result(60) == 4).all()
        print("well")
"""

TQDM = """
    import io
    import sys

    import redirect

    redirect.install("tqdm")

    import numpy as np
    import tqdm.contrib.concurrent
    import tqdm.std

    import mp_all as mp

    def work(array):
        return array + 1

    if __name__ == "__main__":
        mp.set_start_method(sys.argv[1])
        arrays = [np.full(100_000, k, float) for k in range(6)]
        drawn = io.StringIO()
        results = tqdm.contrib.concurrent.process_map(work, arrays, max_workers=2, chunksize=1, file=drawn)
        assert all((got == sent + 1).all() for got, sent in zip(results, arrays))
        assert all(mp.is_shared(got) for got in results)
        assert "6/6" in drawn.getvalue()
        print("well")
"""

EXECUTOR = """
    import sys

    from concurrent.futures import ProcessPoolExecutor, as_completed

    import numpy as np

    import mp_all as multiprocessing

    calibration = None

    def begin(array):
        global calibration
        calibration = array

    def work(image):
        return image - calibration

    if __name__ == "__main__":
        dark = np.full((500, 500), 7.0)
        images = [np.full((500, 500), float(k)) for k in range(6)]
        context = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(2, mp_context=context, initializer=begin, initargs=(dark,)) as executor:
            waiting = {executor.submit(work, image): image for image in images}
            for done in as_completed(waiting, timeout=60):
                assert (done.result() == waiting[done] - 7).all()
                assert multiprocessing.is_shared(done.result())
            mapped = list(executor.map(work, images, chunksize=2))
            assert all((got == sent - 7).all() for got, sent in zip(mapped, images))
        print("well")
"""


def runs(folder: Path, program: str, method: str) -> None:
    done = run_script(folder, program, method, PYTHONPATH=str(REDIRECT), MP_CONTRACT_CACHE=str(folder))
    # Some libraries warn on stderr, of nothing that is ours.
    assert (done.returncode, done.stdout) == (0, "well\n"), f"{done.stdout}\n{done.stderr}"


@METHODS
@pytest.mark.parametrize(
    ("library", "program"), [("joblib", JOBLIB), ("mpire", MPIRE), ("pebble", PEBBLE), ("tqdm", TQDM)]
)
def test_a_published_library_runs_with_its_import_changed(
    tmp_path: Path, library: str, program: str, method: str, strategy: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}, which `nox -s programs` installs")
    runs(tmp_path, program, method)


@METHODS
def test_a_program_of_executors_runs_with_its_import_changed(tmp_path: Path, method: str, strategy: str) -> None:
    runs(tmp_path, EXECUTOR, method)
