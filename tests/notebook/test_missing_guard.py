"""A program that starts processes at its top level, without ``if __name__ == "__main__":``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.scripts import run_script

LINES = 25  # on stderr, at most
METHODS = ("spawn", "forkserver")

WAYS = {
    "Pool.map": "multiprocessing.Pool(8).map(f, range(100))",
    "Pool.imap": "list(multiprocessing.Pool(8).imap(f, range(100)))",
    "Pool.apply_async": "multiprocessing.Pool(8).apply_async(f, (1,)).get()",
    "Pool with an initializer": "multiprocessing.Pool(8, f, (1,)).map(f, range(100))",
    "submit": "multiprocessing.ProcessPoolExecutor(8).submit(f, 1).result()",
    "ProcessPoolExecutor.map": "list(multiprocessing.ProcessPoolExecutor(8).map(f, range(100)))",
    "run": "multiprocessing.run(f, nprocs=8, start_method=METHOD)",
    "start_processes": "multiprocessing.start_processes(f, nprocs=8, start_method=METHOD)",
}

PROGRAM = """
    import mp_all as multiprocessing

    METHOD = {method!r}


    def f(x):
        return x


    multiprocessing.set_start_method(METHOD, force={force})
"""


def texts(stderr: str, folder: Path) -> int:
    """Return how often the text is there, which names the program and shows the lines to write."""
    shown = f"{folder / 'program.py'} starts processes, or sets how they start, at its top level"
    lines = '    if __name__ == "__main__":\n        main()'
    assert stderr.count(lines) == stderr.count(shown), stderr
    return stderr.count(shown)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("way", "force"), [*((way, True) for way in WAYS), ("Pool.map", False), ("run", False)])
def test_a_program_without_the_guard_ends_with_one_short_error_that_shows_it(
    way: str, force: bool, method: str, tmp_path: Path
) -> None:
    done = run_script(tmp_path, PROGRAM.format(method=method, force=force) + f"    {WAYS[way]}\n")
    assert done.returncode == 1, done.stderr
    assert texts(done.stderr, tmp_path) == 1, done.stderr
    assert len(done.stderr.splitlines()) <= LINES, done.stderr
    assert "initializer" not in done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_processes_without_the_guard_fail_as_in_the_standard_library_with_one_short_text(
    method: str, tmp_path: Path
) -> None:
    program = """
    processes = [multiprocessing.Process(target=f, args=(1,)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes], "the program goes on")
    """
    done = run_script(tmp_path, PROGRAM.format(method=method, force=True) + program)
    if method == "forkserver" and sys.version_info[:2] == (3, 14):  # its server ends, and `start` raises
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "[1, 1, 1, 1, 1, 1, 1, 1] the program goes on\n"), done.stderr
        assert "RuntimeError: " in done.stderr
    assert texts(done.stderr, tmp_path) == 1, done.stderr
    assert len(done.stderr.splitlines()) <= LINES, done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_program_that_catches_the_error_in_its_children_goes_on_as_in_the_standard_library(
    method: str, tmp_path: Path
) -> None:
    program = """
    try:
        pool = multiprocessing.Pool(2)
    except RuntimeError:
        pass  # in a child
    else:
        print(pool.map(f, [1, 2, 3]))
        pool.close()
        pool.join()
    """
    done = run_script(tmp_path, PROGRAM.format(method=method, force=True) + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2, 3]\n", "")
