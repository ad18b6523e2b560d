"""Hundreds of injected faults: every message is delivered intact or reported as lost; no process hangs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from scene import LONG, can_unshare, python, runtime_folder, with_dev_shm_of

STORM = str(Path(__file__).with_name("storm.py"))
CHURN = str(Path(__file__).with_name("churn.py"))
SECONDS = 600 if LONG else 6
FAULTS = 4000 if LONG else 60
TIMEOUT = 3600 if LONG else 110

pytestmark = pytest.mark.timeout(TIMEOUT + 10)


def finished(command: list[str], folder: Path, strategy: str) -> subprocess.CompletedProcess[str]:
    tests = str(Path(__file__).parents[1])
    own = {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy, "PYTHONPATH": tests}
    return subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=TIMEOUT)


def run(command: list[str], strategy: str) -> None:
    with runtime_folder() as folder:
        done = finished(command, folder, strategy)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert done.stdout.startswith(f"{FAULTS} faults: ")


def test_every_message_is_delivered_or_reported_as_lost(strategy: str) -> None:
    run(python(STORM, str(FAULTS), "1"), strategy)


def test_every_message_is_delivered_or_reported_with_a_full_dev_shm() -> None:
    if not can_unshare():
        pytest.skip("no mount namespace with a small /dev/shm can be made here (unshare -m)")
    run(with_dev_shm_of("4m", *python(STORM, str(FAULTS), "2")), "file_system")


def test_arrays_stay_intact_while_generations_daemons_and_managers_come_and_go(tmp_path: Path, strategy: str) -> None:
    with runtime_folder() as folder:
        done = finished(python(CHURN, str(SECONDS), "3", str(tmp_path)), folder, strategy)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.match(r"\d+ faults: .*\nworkers: ", done.stdout), done.stdout
