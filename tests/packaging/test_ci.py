"""The workflow's matrix is nox's list, and the hooks are sessions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
pytest.importorskip("nox", reason="nox is not installed")


def nox_lists(*args: str) -> list[dict]:
    """
    Return the output of `./do` with these arguments.
    """
    command = [sys.executable, "-m", "nox", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def workflow() -> dict:
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


@pytest.fixture(scope="module")
def jobs(workflow: dict) -> list[dict]:
    """
    Return the jobs of the workflow, as its own command prints them.
    """
    script = "".join(step.get("run", "") for step in workflow["jobs"]["sessions"]["steps"])
    (args,) = re.findall(r"\$\(\./do (.*?)\)", script)
    return nox_lists(*args.split())


def test_the_default_sessions_are_all_jobs(jobs: list[dict]) -> None:
    # `./do` uses the interpreter that runs it, and runs the C library's tests at once; the jobs use every interpreter.
    default = {entry["session"] for entry in nox_lists("-l", "--json")}
    names = {entry["session"] for entry in jobs}
    assert default - {name for name in default if name.startswith(("tests-", "libshm("))} <= names
    interpreters = {
        f"tests-3.{minor}({strategy})" for minor in (11, 12, 13, 14) for strategy in ("file_descriptor", "file_system")
    }
    assert {name for name in names if name.startswith("tests-")} == interpreters | {
        "tests-without-libshm",
        "tests-without-channels",
    }
    assert {"build", "lint", "libshm(plain)", "libshm(asan)", "libshm(tsan)"} <= names
    assert "libshm(valgrind)" not in names


def test_every_job_fits_into_the_matrix(workflow: dict, jobs: list[dict]) -> None:
    assert len(jobs) == len({entry["session"] for entry in jobs}) <= 256  # the largest matrix of GitHub
    text = json.dumps(workflow["jobs"]["session"])
    used = set(re.findall(r"matrix\.(\w+)", text))
    assert used == {"session", "name"}
    assert all(used <= set(entry) for entry in jobs)
    assert workflow["jobs"]["session"]["strategy"]["matrix"]["include"] == (
        "${{ fromJSON(needs.sessions.outputs.sessions) }}"
    )


def test_the_workflow_installs_every_interpreter_that_a_job_needs(workflow: dict, jobs: list[dict]) -> None:
    (setup,) = [step for step in workflow["jobs"]["session"]["steps"] if "setup-python" in step.get("uses", "")]
    installed = set(setup["with"]["python-version"].split())
    assert {entry["python"] for entry in jobs if entry["python"]} == installed


def test_the_hooks_are_sessions() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    sessions = [re.fullmatch(r"\./do -s ([\w-]+)", entry)[1] for entry in entries]
    assert sessions == [entry["session"] for name in sessions for entry in nox_lists("-l", "--json", "-s", name)]


def test_the_nightly_workflow_and_session_run_the_same_sessions() -> None:
    from tools.sessions.neighbours import NIGHTLY

    assert {entry["name"] for entry in nox_lists("-l", "--json", "-t", "nightly")} == set(NIGHTLY)
    assert "./do -l --json -t nightly" in (ROOT / ".github/workflows/nightly.yml").read_text()
