"""Programs that PyInstaller has frozen, in a folder or in one file, share memory and start ranks (`nox -s frozen`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mp_all as mp
from mp_core.sharing import compiled

PROGRAM = Path(__file__).with_name("frozen_program.py")


@pytest.mark.parametrize("form", ["--onedir", "--onefile"])
@pytest.mark.timeout(900)
def test_a_frozen_program_shares_memory_and_starts_ranks(tmp_path: Path, form: str, strategy: str) -> None:
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed: nox -s frozen")
    command = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", form, str(PROGRAM)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    built = tmp_path / "dist" / PROGRAM.stem
    program = built if form == "--onefile" else built / PROGRAM.stem
    done = subprocess.run([program], capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    said = "200000.0 True True [200000, 200000] [0, 7]"
    expected = [f"{method} {said}" for method in mp.get_all_start_methods()]
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (expected, "", 0)


def test_a_frozen_program_without_libshm_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_FILE", "/missing/mp_core/_libshm.abi3.so")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ImportError, match=r"lacks /missing/mp_core/_libshm\.abi3\.so.*PyInstaller.*shm-manager"):
        compiled._load_block()
