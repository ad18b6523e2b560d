"""Every Python block of every README is a program that runs.

Sybil was tried: it runs a block in this process, where `__name__` is not "__main__" and no child can import the block.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.scripts import run_python

ROOT = Path(__file__).parents[2]
READMES = sorted([ROOT / "README.md", *ROOT.glob("packages/*/README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

BLOCKS = {
    f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 2}": match[1]
    for path in READMES
    if path.exists()
    for text in [path.read_text()]
    for match in BLOCK.finditer(text)
}


def test_each_package_and_the_project_have_a_readme() -> None:
    assert [str(path) for path in READMES if not path.exists()] == []
    assert len(READMES) == 9


def test_the_projects_readme_begins_with_a_program_of_at_most_twelve_lines() -> None:
    first, *_ = (text for name, text in BLOCKS.items() if name.startswith("README.md:"))
    assert 0 < len(first.splitlines()) <= 12


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(tmp_path: Path, block: str) -> None:
    if "mp_cuda" in BLOCKS[block]:
        pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
        if not list(Path("/dev").glob("nvidia[0-9]*")):
            pytest.skip("no CUDA device")
    if "mp_torch" in BLOCKS[block]:
        pytest.importorskip("torch", reason="torch is not installed: nox -s torch")
    program = tmp_path / "program.py"
    program.write_text(BLOCKS[block])
    done = run_python(str(program), cwd=tmp_path, timeout=100)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    # A block that shows its output does so in comments: `print(x)  # 3`.
    for shown in re.findall(r"^\s*print\(.*\)  # (.+)$", BLOCKS[block], re.MULTILINE):
        assert shown in done.stdout.splitlines(), f"{block}: {shown!r} was promised\n{done.stdout}"
