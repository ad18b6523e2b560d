"""The test suites of pebble and mpire on `multiprocessing` and under `python -m mp_all`: nothing may be worse.

    python libraries.py [--json FILE] [pebble|mpire ...] [MODULE ...]

The suites are those of the sdists on PyPI; this repository holds no part of them. Each of their modules runs in a
process of its own, on both sides at the same time. A test whose two sides differ is repeated as in `compare.py`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from compare import HEADER, RUNNER, compared, is_well, row, show
from known import KNOWN_OF_LIBRARIES
from sides import Side, run_sides


class Suite(NamedTuple):
    folder: str  # of the tests, in the sdist
    package: str  # that the tests are modules of; empty for top-level modules


# mpire's later sdists have no tests.
SUITES = {"pebble": Suite("test", ""), "mpire": Suite("tests", "tests.")}


def unpack(library: str, into: Path) -> Path:
    """
    Download the sdist of the installed version, and return its folder.
    """
    version = importlib.metadata.version(library)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", str(into)]
    subprocess.run([*pip, f"{library}=={version}"], check=True)
    [archive] = into.glob(f"{library}-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def run_module(module: str) -> dict[str, Any]:
    def run(tests: list[str] | None, limit: float) -> dict[str, Side]:
        return run_sides(module, "-", tests, patience=120, limit=limit, options=RUNNER)

    return compared(run, KNOWN_OF_LIBRARIES)


def run_library(library: str, modules: list[str], folder: Path) -> list[dict[str, Any]]:
    suite, root = SUITES[library], unpack(library, folder)
    # The tests are found in the sdist, the library where it is installed.
    paths = [root if suite.package else root / suite.folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    results = []
    for path in sorted((root / suite.folder).glob("test_*.py")):
        if modules and path.stem not in modules:
            continue
        result = run_module(suite.package + path.stem) | {"suite": f"{library} `{path.stem}`", "method": ""}
        results.append(result)
        print(row(result), flush=True)
        show(result)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything there, for the record")
    parser.add_argument("what", nargs="*", help="pebble, mpire, modules of their tests; all when nothing is said")
    options = parser.parse_args()
    # So that an end of this program ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    modules = [name for name in options.what if name not in SUITES]
    for library in [name for name in SUITES if name in options.what] or SUITES:
        with tempfile.TemporaryDirectory(prefix="mp-libraries-") as folder:
            results += run_library(library, modules, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print()
    print(HEADER)
    for result in results:
        print(row(result))
    statuses = Counter(status for result in results for status in Counter(result["same"]).elements())
    print(f"the same: {dict(statuses)}; different: {sum(len(result['differences']) for result in results)}")
    return 0 if results and all(is_well(result) and not result["missing"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
