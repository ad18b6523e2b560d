"""Sessions for all work on this repository. `nox -l` is the help."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import nox

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

# Interpreters of pyenv, if installed: nox looks for python3.12 and so on on PATH.
_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *(str(p) for p in sorted(_pyenv.glob("3.*/bin")))])

# Without its cache, pytest compiles the tests and its plugins again in each process, which takes a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

nox.needs_version = ">=2024.4.15"
nox.options.reuse_existing_virtualenvs = True
# A session whose interpreter is missing fails and names it.
nox.options.error_on_missing_interpreters = True
# "The tests" of the README: on the interpreter that runs nox, every strategy. `./do` runs parts of them at once
# (tools/all_parts.py). While the library's run, the suite builds the wheels, which the checks install as well.
PARTS = {
    "library": ["libshm(every)"],
    "checks": ["lint", "docs", "alone(mp-spawn)", "alone(mp-pool)", "alone(mp-nodes)", "cuda-stub(newest)"],
    "suite": [f"tests-{HERE}(every)"],
}
parts = os.environ.pop("DO_PARTS", " ".join(PARTS)).split()
nox.options.sessions = [name for part in parts for name in PARTS[part]]

# tools/sessions/ has them by subject. nox lists them in this order.
sys.path.insert(0, str(Path(__file__).parent))
for subject in ("suite", "library", "neighbours", "distributions", "checks", "measurements", "development"):
    importlib.import_module(f"tools.sessions.{subject}")
