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
