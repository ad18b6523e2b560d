"""The test files run in lanes: from one queue, each lane with a /dev/shm of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools import lanes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not lanes.can_isolate(), reason="needs mount namespaces (unshare)")


def test_short_files_of_a_folder_share_a_process_and_long_ones_have_their_own() -> None:
    names = ["a/long.py", "a/one.py", "a/two.py", "b/one.py", "b/unknown.py"]
    long, rest = 2 * lanes.BATCH, lanes.BATCH - lanes.UNKNOWN + 1
    seconds = {"a/long.py": long, "a/one.py": 1.0, "a/two.py": 2.0, "b/one.py": rest}
    made = lanes.batches(map(Path, names), seconds)
    assert [[file.as_posix() for file in batch.files] for batch in made] == [
        ["a/long.py"],
        ["a/one.py", "a/two.py"],
        ["b/one.py"],
        ["b/unknown.py"],
    ]
    assert [batch.seconds for batch in made] == [long, 3.0, rest, lanes.UNKNOWN]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools import lanes; lanes.main()"
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_every_file_runs_with_the_options_and_variables_of_its_series_and_those_that_fail_are_named(
    tmp_path: Path,
) -> None:
    text = "import os\n\ndef test_it():\n    print('it ran')\n    assert os.environ['WANTED'] == '1'\n"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(text)
    done = run(tmp_path, "WANTED=1", "test_a.py", "--and", "WANTED=2", "test_b.py", "test_a.py", "--ignore=test_a.py")
    assert done.returncode == 1 and done.stderr.strip() == "failed: test_b.py", done.stdout + done.stderr
    assert "test_a.py: 1 passed" in done.stdout and "test_b.py: 1 failed" in done.stdout
    assert done.stdout.count("\nit ran") == 1  # the output of a file that passes is not shown


def test_lanes_run_at_once_and_see_no_shared_memory_of_each_other(tmp_path: Path) -> None:
    """Each creates a name, waits until the other has created its own, and lists what it sees."""
    for own, other in (("a", "b"), ("b", "a")):
        Path(tmp_path, own).mkdir()
        Path(tmp_path, own, f"test_{own}.py").write_text(
            textwrap.dedent(f"""
                import os, pathlib, time

                def test_it():
                    here = pathlib.Path({str(tmp_path)!r})
                    open("/dev/shm/{own}", "w").close()
                    (here / "{own}-is-there").touch()
                    end = time.monotonic() + 60
                    while not (here / "{other}-is-there").exists():
                        assert time.monotonic() < end
                        time.sleep(0.01)
                    assert os.listdir("/dev/shm") == ["{own}"]
                    assert os.environ["MPSHM_RUNTIME_DIR"]
            """)
        )
    done = run(tmp_path, "a", "b")
    assert done.returncode == 0, done.stdout + done.stderr
