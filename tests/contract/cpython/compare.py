"""CPython's own tests on `multiprocessing` and on `mp_all`, test by test: nothing may be worse.

    python compare.py [--json FILE] [fork|spawn|forkserver ...] [multiprocessing|futures|executors ...]

`futures` tests the standard executor on the contexts of each library, `executors` the executor of each library. Both
sides run beside each other. A test whose two sides differ is repeated alone, up to three times, unless that is known;
only what differs every time is a difference.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from known import KNOWN, KNOWN_OF_EXECUTORS
from sides import LIBRARIES, Side, run_sides

METHODS = ["fork", "spawn", "forkserver"]
SUITES = ["multiprocessing", "futures", "executors"]
RUNNER = {"mp_all": ("-m", "mp_all")}
REPEATS = 3
NEVER = ("never ran", "")
FINE = ("passed", "skipped", "expected failure")


def compare(suite: str, method: str) -> dict[str, Any]:
    """
    One suite under one start method: counts, and every difference with what each side said.
    """

    def run(tests: list[str] | None, limit: float) -> dict[str, Side]:
        return run_sides(
            suite, method, tests, patience=180, limit=limit, options=RUNNER if suite == "executors" else {}
        )

    return compared(run, KNOWN_OF_EXECUTORS if suite == "executors" else KNOWN) | {"suite": suite, "method": method}


def compared(run: Callable[[list[str] | None, float], dict[str, Side]], known: dict[str, str]) -> dict[str, Any]:
    """
    Compare both sides, test by test. *run* runs all tests, or those of a list, for at most so many seconds.
    """
    sides = run(None, 3600)
    theirs, ours = (sides[library].statuses for library in LIBRARIES)
    missing = sides["mp_all"].missing or sides["multiprocessing"].missing
    names = sorted({*theirs, *ours, *(sides["multiprocessing"].wanted or []), *(sides["mp_all"].wanted or [])})
    apart = {name for name in names if theirs.get(name, NEVER)[0] != ours.get(name, NEVER)[0]}
    calmed, differences = [], []
    for name in sorted(apart):
        said_first = {"multiprocessing": theirs.get(name, NEVER)[1], "mp_all": ours.get(name, NEVER)[1]}
        first = [f"{theirs.get(name, NEVER)[0]} / {ours.get(name, NEVER)[0]}"]
        # A known difference is no surprise; nothing else than an error or a failure is on purpose.
        reason = next((why for part, why in known.items() if part in name), None)
        if reason is not None and ours.get(name, NEVER)[0] in ("failed", "error"):
            differences.append({"test": name, "first and repeats": first, "said": said_first, "known": reason})
            continue
        for _ in range(REPEATS):
            again = run([name], 600)
            new = [again[library].statuses.get(name, NEVER) for library in LIBRARIES]
            first.append(f"{new[0][0]} / {new[1][0]}")
            theirs[name], ours[name] = new
            if new[0][0] == new[1][0]:
                calmed.append({"test": name, "first and repeats": first, "said": said_first})
                break
        else:
            said = {"multiprocessing": theirs[name][1], "mp_all": ours[name][1]}
            known_now = reason if ours[name][0] in ("failed", "error") else None
            differences.append({"test": name, "first and repeats": first, "said": said, "known": known_now})
    equal = Counter(ours[name][0] for name in names if name in ours and ours[name][0] == theirs.get(name, NEVER)[0])
    return {
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "missing": missing,
        "tests": len(names),
        "same": dict(equal),
        "failing on both": [
            {
                "test": name,
                "status": ours[name][0],
                "said": {"multiprocessing": theirs[name][1], "mp_all": ours[name][1]},
            }
            for name in names
            if name in ours and ours[name][0] == theirs.get(name, NEVER)[0] and ours[name][0] not in FINE
        ],
        "repeated": calmed,
        "differences": differences,
        "environment altered": {library: sides[library].altered for library in LIBRARIES},
    }


def show(result: dict[str, Any]) -> None:
    """
    Print each test that failed or differed, and what it said.
    """
    for entry in result["failing on both"]:
        print("  failing on both:", entry["test"], flush=True)
    for entry in result["repeated"]:
        print("  the same when repeated:", entry["test"], entry["first and repeats"], flush=True)
    for entry in result["differences"]:
        print("  DIFFERENT:", entry["test"], entry["first and repeats"], entry["known"] or "", flush=True)
        for library, said in entry["said"].items():
            print(f"    {library}: {said}", flush=True)


NAMES = {
    "multiprocessing": "`test._test_multiprocessing`",
    "futures": "`test.test_concurrent_futures`",
    "executors": "`test.test_concurrent_futures`, `ProcessPoolExecutor` of `mp_all`",
}
HEADER = """\
| Python | suite | start method | tests | pass on both | skipped on both | fail on both | repeated | different | date |
|---|---|---|---|---|---|---|---|---|---|"""


def row(result: dict[str, Any]) -> str:
    head = f"| {result['python']} | {NAMES.get(result['suite'], result['suite'])} | {result['method']} |"
    if result["missing"]:
        return f"{head} not in this interpreter's installation: `{result['missing']}` | | | | | | {result['date']} |"
    same = Counter(result["same"])
    passed, skipped = same["passed"] + same["expected failure"], same["skipped"]
    return (
        f"{head} {result['tests']} | {passed} | {skipped} | {sum(same.values()) - passed - skipped} "
        f"| {len(result['repeated'])} | {len(result['differences'])} | {result['date']} |"
    )


def is_well(result: dict[str, Any]) -> bool:
    """
    Whether the suite has run, or is not in this installation, and each difference is known.
    """
    ran = "passed" in result["same"] or result["missing"] is not None
    return ran and all(entry["known"] for entry in result["differences"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything there, for the record")
    parser.add_argument("what", nargs="*", help=f"any of {', '.join(METHODS + SUITES)}; all when nothing is said")
    options = parser.parse_args()
    if wrong := set(options.what) - {*METHODS, *SUITES}:
        parser.error(f"{', '.join(sorted(wrong))}: not one of {', '.join(METHODS + SUITES)}")
    # So that an end of this program ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    for suite in [s for s in SUITES if s in options.what] or SUITES:
        for method in [m for m in METHODS if m in options.what] or METHODS:
            results.append(result := compare(suite, method))
            print(row(result), flush=True)
            show(result)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print()
    print(HEADER)
    for result in results:
        print(row(result))
    return 0 if all(map(is_well, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
