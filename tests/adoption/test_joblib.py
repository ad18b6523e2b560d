"""`joblib_install`: joblib's calls on mp_all's workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

pytest.importorskip("joblib", reason="joblib is not installed: nox -s adoption")

BEGIN = """
    import os, signal, sys
    import joblib
    import numpy as np
    import mp_all as mp
    from joblib import Parallel, delayed
    mp.joblib_install()
"""


def output(folder: Path, program: str, **environment: str) -> str:
    """
    Run a program without a guard of its main module, as users of joblib write it.
    """
    return succeeded(run_script(folder, BEGIN + program, **environment))


def test_functions_of_the_main_module_run_without_a_guard(tmp_path: Path, strategy: str) -> None:
    program = """
    class Point:
        def __init__(self, x):
            self.x = x

    def point(x):
        return Point(x + 1)

    print([p.x for p in Parallel(n_jobs=2)(delayed(point)(i) for i in range(5))])
    print(Parallel(n_jobs=2)(delayed(lambda x: x * x)(i) for i in range(5)))
    """
    assert output(tmp_path, program, MP_SHARING_STRATEGY=strategy) == "[1, 2, 3, 4, 5]\n[0, 1, 4, 9, 16]\n"


@pytest.mark.parametrize(
    "make", ["np.zeros(n)", "np.zeros((1000, n // 1000), order='F')", "np.zeros(n, 'M8[s]').view('f8')"]
)
def test_a_task_may_write_to_a_large_argument_and_no_other_task_sees_it(tmp_path: Path, make: str) -> None:
    program = f"""
    def write(a, i):
        before = float(a.sum())
        a += i + 1
        return before, float(a.flat[-1]), a.shape, a.strides

    n = 1_000_000
    a = {make}
    for result in Parallel(n_jobs=2)(delayed(write)(a, i) for i in range(8)):
        assert result[0] == 0 and result[2:] == (a.shape, a.strides), result
    print(float(a.sum()))
    """
    assert output(tmp_path, program) == "0.0\n"


def test_a_read_only_argument_stays_read_only(tmp_path: Path) -> None:
    program = """
    a = np.zeros(1_000_000)
    a.flags.writeable = False
    print(Parallel(n_jobs=2)(delayed(lambda a: a.flags.writeable)(a) for _ in range(2)))
    """
    assert output(tmp_path, program) == "[False, False]\n"


def test_a_shared_argument_stays_shared(tmp_path: Path, strategy: str) -> None:
    program = """
    def write(a, i):
        a[i] = i

    a = mp.shared.zeros(1_000_000)
    Parallel(n_jobs=2)(delayed(write)(a, i) for i in range(8))
    print(a[:9].astype(int).tolist())
    """
    assert output(tmp_path, program, MP_SHARING_STRATEGY=strategy) == "[0, 1, 2, 3, 4, 5, 6, 7, 0]\n"


def test_a_large_argument_is_in_memory_once_for_all_tasks(tmp_path: Path) -> None:
    program = """
    def place(a):
        (line,) = {line.split()[4] for line in open("/proc/self/maps") if "mp_core input" in line}
        return line, a.sum()

    a = np.ones(1_000_000)
    assert len(set(Parallel(n_jobs=2)(delayed(place)(a) for _ in range(20)))) == 1
    b = {"inside": (a[:500_000], a[:500_000])}
    print(Parallel(n_jobs=2)(delayed(lambda b: float(b["inside"][1].sum()))(b) for _ in range(3)))
    print(sum("mp_core input" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd != "3"))
    """
    out = output(tmp_path, program.replace('if fd != "3"', 'if os.path.lexists(f"/proc/self/fd/{fd}")'))
    assert out == "[500000.0, 500000.0, 500000.0]\n0\n"


def test_an_argument_that_changes_between_calls_arrives_as_it_is(tmp_path: Path) -> None:
    program = """
    a, means = np.zeros(1_000_000), []
    with Parallel(n_jobs=2) as parallel:
        for _ in range(4):
            a += 1
            means += parallel(delayed(np.mean)(a) for _ in range(2))
    print([int(mean) for mean in means])
    """
    assert output(tmp_path, program) == "[1, 1, 2, 2, 3, 3, 4, 4]\n"


def test_many_large_arguments_leave_descriptors_for_the_program(tmp_path: Path) -> None:
    program = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    arrays = [np.full(150_000, i) for i in range(300)]
    results = Parallel(n_jobs=2)(delayed(lambda a: int(a[-1]))(a) for a in arrays)
    print(results == list(range(300)))
    """
    assert output(tmp_path, program) == "True\n"


def test_results_come_through_shared_memory_and_can_be_written_to(tmp_path: Path, strategy: str) -> None:
    program = """
    results = Parallel(n_jobs=2)(delayed(np.ones)(1_000_000) for _ in range(4))
    results[0] += 1
    print([mp.is_shared(a) for a in results], [float(a.mean()) for a in results])
    """
    expected = "[True, True, True, True] [2.0, 1.0, 1.0, 1.0]\n"
    assert output(tmp_path, program, MP_SHARING_STRATEGY=strategy) == expected


@pytest.mark.parametrize("how", ["generator", "generator_unordered"])
def test_results_can_be_taken_one_by_one(tmp_path: Path, how: str) -> None:
    program = f"""
    import warnings

    warnings.simplefilter("ignore")  # joblib's, of tasks whose results are not taken
    results = Parallel(n_jobs=2, return_as="{how}")(delayed(pow)(i, 2) for i in range(6))
    first = next(results)
    print(first in range(36), len([first, *results]))
    abandoned = Parallel(n_jobs=2, return_as="{how}")(delayed(pow)(i, 2) for i in range(1000))
    next(abandoned)
    del abandoned
    print(Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(3)))
    """
    assert output(tmp_path, program) == "True 6\n[0, 1, 2]\n"


def test_an_exception_arrives_with_its_class_and_the_traceback_of_the_worker(tmp_path: Path) -> None:
    program = """
    class Odd(Exception):
        pass

    def check(i):
        if i == 3:
            raise Odd(i)

    try:
        Parallel(n_jobs=2)(delayed(check)(i) for i in range(6))
    except Odd as error:
        print(error, "in check" in str(error.__cause__))
    """
    assert output(tmp_path, program) == "3 True\n"


KILLED = """
    import threading

    def once(path, i):
        if i == 2 and not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    path = sys.argv[0] + ".killed"
"""


def test_a_killed_worker_is_named_and_the_next_call_runs(tmp_path: Path) -> None:
    program = (
        KILLED
        + """
    try:
        Parallel(n_jobs=2)(delayed(once)(path, i) for i in range(6))
    except mp.WorkerLostError as error:
        print(error.signal_name)
    print(Parallel(n_jobs=2)(delayed(once)(path, i) for i in range(6)))
    """
    )
    assert output(tmp_path, program) == "SIGKILL\n[0, 1, 2, 3, 4, 5]\n"


def test_a_killed_worker_fails_no_other_call(tmp_path: Path) -> None:
    program = (
        KILLED
        + """
    from joblib.parallel import BACKENDS

    def wait(i, gate):
        while not os.path.exists(gate):
            pass
        return i

    backend = lambda: BACKENDS["mp_all"](nesting_level=0)
    gate, results = path + ".gate", []
    other = threading.Thread(
        target=lambda: results.append(Parallel(n_jobs=2, backend=backend())(delayed(wait)(i, gate) for i in range(1)))
    )
    with Parallel(n_jobs=2, backend=backend()) as held:
        held(delayed(abs)(i) for i in range(2))
        other.start()
        try:
            held(delayed(once)(path, i) for i in range(6))
        except mp.WorkerLostError as error:
            print(error.signal_name)
        open(gate, "w").close()
    other.join(30)
    print(results)
    """
    )
    assert output(tmp_path, program) == "SIGKILL\n[[0]]\n"


def test_with_retries_a_call_outlives_a_killed_worker(tmp_path: Path) -> None:
    program = (
        KILLED
        + """
    with joblib.parallel_config("mp_all", retries=1):
        print(Parallel(n_jobs=2)(delayed(once)(path, i) for i in range(6)))
    """
    )
    assert output(tmp_path, program) == "[0, 1, 2, 3, 4, 5]\n"


def test_workers_stay_for_the_next_call_and_end_when_they_are_idle(tmp_path: Path) -> None:
    program = """
    import time

    def pids(**options):
        with joblib.parallel_config("mp_all", n_jobs=2, **options):
            return set(Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(20)))

    first = pids()
    print(bool(first & pids(idle_worker_timeout=0.1)))
    while any(os.path.exists(f"/proc/{pid}") for pid in first):
        time.sleep(0.01)
    print(bool(first & pids()))
    """
    assert output(tmp_path, program) == "True\nFalse\n"


def test_calls_within_tasks_run_in_threads_as_with_loky(tmp_path: Path) -> None:
    program = """
    def inner():
        return type(Parallel(n_jobs=2)._backend).__name__

    def outer():
        return inner(), Parallel(n_jobs=2)(delayed(inner)() for _ in range(2))

    ours = Parallel(n_jobs=2)(delayed(outer)() for _ in range(2))
    print(ours == Parallel(n_jobs=2, backend="loky")(delayed(outer)() for _ in range(2)), ours[0])
    named = lambda: Parallel(n_jobs=2, backend="mp_all")(delayed(abs)(-i) for i in range(3))
    print(Parallel(n_jobs=2)(delayed(named)() for _ in range(2)))
    """
    expected = "True ('ThreadingBackend', ['SequentialBackend', 'SequentialBackend'])\n[[0, 1, 2], [0, 1, 2]]\n"
    assert output(tmp_path, program) == expected


@pytest.mark.parametrize("everywhere", ["0", "1"])
def test_libraries_in_workers_have_as_many_threads_as_with_loky(tmp_path: Path, everywhere: str) -> None:
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed: nox -s adoption")
    program = """
    import threadpoolctl

    def threads():
        np.ones((2, 2)) @ np.ones((2, 2))
        return [library["num_threads"] for library in threadpoolctl.threadpool_info()]

    for inner in None, 1, 2:
        found = []
        for backend in "loky", "mp_all":
            with joblib.parallel_config(backend, n_jobs=2, inner_max_num_threads=inner):
                found += Parallel()(delayed(threads)() for _ in range(2))
        assert found[0] and all(each == found[0] for each in found), found
    """
    assert output(tmp_path, program, MP_ALL=everywhere) == ""


def test_a_forked_child_makes_workers_of_its_own(tmp_path: Path) -> None:
    program = """
    def call():
        return Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(3))

    print(call(), flush=True)
    child = mp.get_context("fork").Process(target=lambda: print(call(), flush=True), daemon=False)
    child.start()
    child.join(60)
    print(call(), child.exitcode)
    """
    assert output(tmp_path, program) == "[0, 1, 2]\n[0, 1, 2]\n[0, 1, 2] 0\n"


def test_without_the_default_only_a_program_that_names_it_gets_it(tmp_path: Path) -> None:
    program = (
        BEGIN.replace("mp.joblib_install()", "mp.joblib_install(make_default=False)")
        + """
    print(type(Parallel(n_jobs=2)._backend).__name__)
    with joblib.parallel_config("mp_all"):
        print(type(Parallel(n_jobs=2)._backend).__module__)
    """
    )
    assert succeeded(run_script(tmp_path, program)) == "LokyBackend\nmp_all._integrations.joblib_backend\n"


def test_without_joblib_the_error_names_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['joblib'] = None; import mp_all; mp_all.joblib_install()"
    done = run_python("-c", code)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("pip install 'mp-all[joblib]'")
