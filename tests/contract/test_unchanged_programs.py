"""`python -m mp_all program` and ``MP_ALL=1``: unchanged programs get mp_all under the name multiprocessing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.scripts import run_python, succeeded

from mp_all import _runner

# A program that knows nothing of mp_all, except where it looks whether an array came through shared memory.
PROGRAM = """
import sys
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pool

import numpy as np


def identity(array):
    kinds = Pool.__module__, ProcessPoolExecutor.__module__, multiprocessing.get_context("spawn").Pool.__module__
    return array + 1, kinds, sys.argv, __file__, __spec__ and __spec__.name


def serve(queue, answers):
    answers.put(identity(queue.get()))


if __name__ == "__main__":
    import mp_all as mp

    method = sys.argv[1]
    multiprocessing.set_start_method(method)
    array = np.arange(100_000)
    answers = [identity(array)]
    with Pool(1) as pool:
        answers.append(pool.apply(identity, (array,)))
    with ProcessPoolExecutor(1) as executor:
        answers.append(executor.submit(identity, array).result(60))
    queues = multiprocessing.Queue(), multiprocessing.Queue()
    child = multiprocessing.Process(target=serve, args=queues)
    child.start()
    queues[0].put(array)
    answers.append(queues[1].get(timeout=60))
    child.join()
    for result, *facts in answers:
        assert (result == array + 1).all()
        assert tuple(facts) == answers[0][1:], (facts, answers[0][1:])
    assert [mp.is_shared(result) for result, *_ in answers] == [False, True, True, True]
    print(*answers[0][1], answers[0][2][1:], answers[0][3], answers[0][4])
"""

OURS = "mp_pool.contexts mp_pool.executor mp_pool.contexts"
WHICH = "from multiprocessing import Pool; from concurrent.futures import ProcessPoolExecutor as E; "
PRINT = "print(Pool.__module__, E.__module__)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "some_program.py"
    path.write_text(PROGRAM)
    return path


def test_a_script_and_its_children_get_ours(program: Path, start_method: str, strategy: str) -> None:
    done = run_python("-m", "mp_all", str(program), start_method, "-v", MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == f"{OURS} ['{start_method}', '-v'] {program} None\n"


def test_a_module_and_its_children_get_ours_and_keep_their_spec(program: Path, start_method: str) -> None:
    done = run_python("-m", "mp_all", "-m", "some_program", start_method, cwd=program.parent)
    assert succeeded(done) == f"{OURS} ['{start_method}'] {program} some_program\n"


def test_a_program_on_standard_input_gets_ours() -> None:
    program = f"import sys\n{WHICH}{PRINT}\nprint(sys.argv)\n"
    done = run_python("-m", "mp_all", "-", "-v", stdin=program)
    assert succeeded(done) == "mp_pool.contexts mp_pool.executor\n['-', '-v']\n"


def test_the_variable_alone_is_enough(program: Path, start_method: str) -> None:
    done = run_python(str(program), start_method, MP_ALL="1")
    assert succeeded(done) == f"{OURS} ['{start_method}'] {program} None\n"


def test_without_the_variable_nothing_of_ours_is_imported() -> None:
    loaded = "[name for name in sys.modules if name[:3] == 'mp_' or name == 'numpy']"
    code = f"import sys, multiprocessing.pool; print({loaded}, sys.meta_path)"
    for value in ("", "0", "no"):
        out = succeeded(run_python("-c", code, MP_ALL=value))
        assert out.startswith("[] ")
        assert "_mp_all_startup" not in out


def test_a_program_without_multiprocessing_imports_nothing_of_ours() -> None:
    code = "import sys, json, threading; print('mp_all' in sys.modules, 'numpy' in sys.modules)"
    assert succeeded(run_python("-c", code, MP_ALL="1")) == "False False\n"


@pytest.mark.parametrize(
    "first",
    [
        *("multiprocessing.pool", "concurrent.futures", "concurrent.futures.process", "multiprocessing.managers"),
        *("mp_all", "mp_core", "mp_pool", "mp_spawn", "mp_reductions", "mp_cuda", "mp_pool.executor"),
    ],
)
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    out = succeeded(run_python("-c", f"import {first}; {WHICH}{PRINT}", MP_ALL="1"))
    assert out == "mp_pool.contexts mp_pool.executor\n"


def test_a_python_that_the_program_starts_gets_ours(tmp_path: Path) -> None:
    inner = f"{WHICH}{PRINT}"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {inner!r}], check=True)"
    assert succeeded(run_python("-m", "mp_all", "-c", code)) == "mp_pool.contexts mp_pool.executor\n"


def test_the_options_of_python_are_kept() -> None:
    code = "import sys; print(sys.flags.dev_mode, sys.flags.isolated, sys.warnoptions, sys.argv)"
    done = run_python("-X", "dev", "-W", "error::UserWarning", "-Im", "mp_all", "-c", code, "x")
    assert succeeded(done) == "True 1 ['default', 'error::UserWarning'] ['-c', 'x']\n"


def test_the_exit_code_is_that_of_the_program(tmp_path: Path) -> None:
    assert run_python("-m", "mp_all", "-c", "raise SystemExit(7)").returncode == 7
    assert run_python("-m", "mp_all", "-c", "import os; os.kill(os.getpid(), 15)").returncode == -15


def test_a_killed_worker_of_an_unchanged_program_fails_its_task_only() -> None:
    code = (
        "import os, multiprocessing as m\n"
        "with m.get_context('fork').Pool(2) as pool:\n"
        "    lost, kept = pool.apply_async(os._exit, (3,)), pool.apply_async(abs, (-1,))\n"
        "    print(kept.get(60))\n"
        "    try:\n"
        "        lost.get(60)\n"
        "    except m.ProcessError as error:\n"
        "        print(error.exitcode)\n"
    )
    assert succeeded(run_python("-m", "mp_all", "-c", code)) == "1\n3\n"


def test_the_resource_tracker_does_not_import_numpy() -> None:
    # The command of a real tracker, as soon as that process has replaced its program.
    code = (
        "import time\n"
        "from multiprocessing import resource_tracker\n"
        "resource_tracker.ensure_running()\n"
        "command, path = [], f'/proc/{resource_tracker._resource_tracker._pid}/cmdline'\n"
        "while not any(argument.startswith('from multiprocessing.resource_tracker') for argument in command):\n"
        "    command = open(path).read().split('\\0')\n"
        "    time.sleep(0.001)\n"
        "print(command[command.index('-c') + 1])\n"
    )
    command = succeeded(run_python("-c", code))
    imports = command.partition(";")[0]
    out = succeeded(
        run_python("-c", f"{imports}; import sys; print('mp_all' in sys.modules, 'numpy' in sys.modules)", MP_ALL="1")
    )
    assert out == "False False\n"


def test_a_missing_hook_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_runner, "_site_folders", lambda: [str(tmp_path)])
    for name in ("mp_all.pth", "_mp_all_startup.py"):
        with pytest.raises(SystemExit, match=rf"{re.escape(name)} is in none of the folders"):
            _runner.run(["-m", "timeit"])
        (tmp_path / name).touch()


@pytest.mark.parametrize(
    ("original", "arguments", "expected"),
    [
        (["python", "-m", "mp_all", "a.py"], ["a.py"], ["a.py"]),
        (["python", "-mmp_all", "-m", "a"], ["-m", "a"], ["-m", "a"]),
        (["python", "-ummp_all", "a.py"], ["a.py"], ["-u", "a.py"]),
        (
            ["python", "-X", "dev", "-um", "mp_all", "a.py", "mp_all"],
            ["a.py", "mp_all"],
            ["-X", "dev", "-u", "a.py", "mp_all"],
        ),
    ],
)
def test_a_command_line_loses_only_the_name_of_mp_all(
    original: list[str], arguments: list[str], expected: list[str]
) -> None:
    assert _runner.command(sys.executable, original, arguments) == [sys.executable, *expected]
