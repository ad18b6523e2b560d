"""Optional requirements: without them everything else works, and the first use says what to install."""

from __future__ import annotations

from pathlib import Path

from support.scripts import run_python, succeeded

WITHOUT_CUDA = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "cuda":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""


def test_without_the_bindings_of_cuda_nothing_warns_and_the_first_array_on_a_device_is_an_import_error() -> None:
    program = """
import multiprocessing, warnings
warnings.simplefilter("error")
import mp_all as mp
import numpy as np

queue = mp.Queue()
queue.put(np.arange(100_000))
assert queue.get().sum() == 4999950000
assert not mp.cuda.is_available()
for use in (lambda: mp.cuda.empty((2,)), lambda: mp.cuda.from_host(b"12")):
    try:
        use()
    except ImportError as error:
        assert isinstance(error, mp.cuda.MpCudaError) and 'pip install "mp-all[cuda]"' in str(error), error
    else:
        raise AssertionError("no error")
print("done", dict(mp.cuda.device_report()))
"""
    assert succeeded(run_python("-c", WITHOUT_CUDA + program)).startswith("done")


def test_the_bug_report_names_each_extra_and_what_it_installs() -> None:
    lines = succeeded(run_python("-m", "mp_all")).splitlines()
    begin = lines.index("extras")
    found = {line.split()[0] for line in lines[begin + 1 : lines.index("sharing")]}
    assert {"mp-all[cuda]", "mp-all[joblib]", "mp-all[prometheus]", "mp-all[top]", "mp-all[ray]"} <= found


def test_mp_torch_in_the_environment_of_an_unchanged_program_says_what_is_missing(tmp_path: Path) -> None:
    """The stand-in for torch is too old."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.0'\nclass UntypedStorage: ...\n")
    absent = "import sys; sys.modules['mp_torch'] = None; "
    for before, missing in (
        ("", "needs torch 2.12 or newer, and this is 2.0"),
        (absent, "need mp-torch, which is not installed: pip install mp-torch"),
    ):
        program = f"{before}import torch; print('the program goes on')"
        done = run_python("-c", program, MP_TORCH="1", PYTHONPATH=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "the program goes on\n"), done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("MP_TORCH=1 has no effect: ")
        assert line.endswith(missing)


def test_a_program_on_one_machine_neither_imports_mp_nodes_nor_looks_for_it(tmp_path: Path) -> None:
    program = """
import sys
import mp_all as mp

if __name__ == "__main__":
    assert mp.run(divmod, (2,), nprocs=2) == [(0, 0), (0, 1)]
    with mp.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    print(sorted(name for name in sys.modules if name.startswith(("mp_nodes", "importlib.metadata"))))
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    assert succeeded(run_python(str(path))) == "[]\n"


def test_without_mp_nodes_each_way_to_several_machines_says_what_to_install() -> None:
    program = """
import importlib.metadata, sys

importlib.metadata.entry_points = lambda **kind: ()
sys.modules["mp_nodes"] = None  # an import of it fails
import mp_all as mp
from mp_spawn.command.main import main

for use in (
    lambda: mp.run(print, engine="ray"),
    lambda: mp.start_processes(print, engine="local"),
    lambda: mp.Pool(2, engine="local"),
):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
print(hasattr(mp, "engines"))
for line in ("--nnodes 2:4 -n 4", "--engine local", "--node-rank 1"):
    print(main([*line.split(), "-c", "pass"]))
"""
    done = run_python("-c", program)
    missing = "needs mp-nodes, which is not installed: pip install mp-nodes"
    engines = [f"engine={name!r} {missing}" for name in ("ray", "local", "local")]
    assert (done.returncode, done.stdout.splitlines()) == (0, [*engines, "False", "2", "2", "2"])
    assert done.stderr.splitlines() == [
        f"mp-spawn: {given} {missing}" for given in ("--nnodes 2:4", "--engine local", "--node-rank 1")
    ]
