"""Build `chaos/preempt.c`, which takes the processor from threads in the worst places, and run scenes with it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from support.scripts import run_python, succeeded

__all__ = ["CHAOS", "built", "needs_preemption", "play"]

CHAOS = Path(__file__).parents[1] / "chaos"
PLAY_TIMEOUT = 600.0

WHY_NOT = (
    "a C compiler is missing"
    if shutil.which("cc") is None
    else "only glibc's mutexes are known to the library"
    if platform.libc_ver()[0] != "glibc"
    else ""
)
needs_preemption = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def built(folder: Path) -> dict[str, str]:
    """Compile the library into *folder*; return the environment of programs that it preempts."""
    library = folder / "preempt.so"
    source = CHAOS / "preempt.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def play(environment: dict[str, str], scene: str, method: str, preempt: str, strategy: str) -> None:
    """Run a scene to its end, preempted as *preempt* says: its results must be right, and nothing on stderr."""
    seed = preempt.partition(",")[0]
    done = run_python(
        str(CHAOS / "scenes.py"),
        scene,
        method,
        seed,
        timeout=PLAY_TIMEOUT,
        **os.environ | environment | {"PREEMPT": preempt, "MP_SHARING_STRATEGY": strategy},
    )
    assert succeeded(done) == "done\n"
