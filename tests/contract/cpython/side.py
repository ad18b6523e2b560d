"""One side of the comparison: a suite on one library under one start method, a line of JSON per event.

    python side.py multiprocessing|mp_all SUITE METHOD EVENTS [ID ...]

SUITE is `multiprocessing`, `futures`, `executors` (as `futures`, but unchanged and run by `python -m mp_all`, which
puts our executor in the place of the standard one), or a module of tests, which `python -m mp_all` runs, too.

It is also the main module of the suite's children: under spawn and forkserver they import it again, and so see the
same redirection. `MP_CONTRACT` names the library for them.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import redirect

CHANGED = ("multiprocessing", "futures")  # the suites whose imports are changed when they are loaded

if __name__ == "__main__":
    names = ("MP_CONTRACT", "MP_CONTRACT_SUITE", "MP_CONTRACT_METHOD")
    os.environ.update(zip(names, sys.argv[1:4], strict=True))

if os.environ.get("MP_CONTRACT") == "mp_all" and os.environ["MP_CONTRACT_SUITE"] in CHANGED:
    redirect.install(*redirect.SUITES)


class Recorder(unittest.TestResult):
    """
    Write each beginning and end at once: a crash or a hang must not lose the rest.
    """

    def __init__(self, events: TextIO) -> None:
        super().__init__()
        self.events = events
        self.parts: dict[str, tuple[str, str]] = {}

    def say(self, **event: Any) -> None:
        self.events.write(json.dumps(event) + "\n")
        self.events.flush()

    def note(self, test: Any, status: str, why: str = "") -> None:
        # A test of several parts is as bad as its worst.
        if status == "passed" and test.id() in self.parts:
            return
        self.parts[test.id()] = (status, why)

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.say(begins=test.id())

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        status, why = self.parts.get(test.id(), ("passed", ""))
        self.say(ended=test.id(), status=status, why=why)

    def addSuccess(self, test: Any) -> None:
        self.note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)
        if isinstance(test, unittest.TestCase):
            return
        # A class or module that is skipped as a whole has no tests that begin.
        self.say(ended=test.id(), status="skipped", why=reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note(test, "unexpected success")

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.failed(test, "failed", err)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.failed(test, "error", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.failed(test, "failed" if issubclass(err[0], test.failureException) else "error", err)

    def failed(self, test: Any, status: str, err: Any) -> None:
        why = self._exc_info_to_string(err, test if isinstance(test, unittest.TestCase) else self)
        self.note(test, status, why)
        if not isinstance(test, unittest.TestCase):
            self.say(ended=test.id(), status=status, why=why)


def of_method(test: unittest.TestCase, method: str) -> bool:
    """
    Whether a test of the executors is one of process pools under *method*.
    """
    context = getattr(test, "ctx", None)
    return context == method and "Process" in type(test).__name__


def tests_of(suite: str, method: str) -> list[unittest.TestCase]:
    loader = unittest.TestLoader()
    if suite == "multiprocessing":
        import processes

        found = loader.loadTestsFromModule(processes)
        return flat(found)
    if suite not in ("futures", "executors"):
        return flat(loader.loadTestsFromModule(importlib.import_module(suite)))
    package = importlib.import_module("test.test_concurrent_futures")
    # One file in CPython 3.11, a package since.
    folders = [Path(folder) for folder in getattr(package, "__path__", [])]
    names = sorted(f"{package.__name__}.{path.stem}" for folder in folders for path in folder.glob("test_*.py"))
    return [test for test in flat(loader.loadTestsFromNames(names or [package.__name__])) if of_method(test, method)]


def flat(tests: unittest.TestSuite | unittest.TestCase) -> list[Any]:
    if isinstance(tests, unittest.TestSuite):
        return [test for part in tests for test in flat(part)]
    return [tests]


def check(library: str, suite: str) -> None:
    """
    Raise `ImportError` if a module is on another library, or has another library's executor.
    """
    ours = library == "mp_all" and suite not in CHANGED
    if ours != ("MP_ALL" in os.environ) or ours != (ProcessPoolExecutor.__module__ == "mp_pool.executor"):
        raise ImportError(f"{suite} has executors of {ProcessPoolExecutor.__module__}, and is to run on {library}")
    for name, module in list(sys.modules.items()) if suite in CHANGED else []:
        loaded = getattr(module, "multiprocessing", None)
        if name.startswith(redirect.SUITES) and loaded is not None and loaded.__name__ != library:
            raise ImportError(f"{name} was loaded on {loaded.__name__} and is to run on {library}")


def main() -> None:
    _, library, suite, method, events, *asked = sys.argv
    from test import support

    # Started in the background of a shell without job control, a process ignores ctrl-C; some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(events, "a", encoding="utf-8") as file:
        recorder = Recorder(file)
        try:
            tests = tests_of(suite, method)
        except ModuleNotFoundError as missing:
            recorder.say(missing=missing.name)
            return
        check(library, suite)
        recorder.say(tests=[test.id() for test in tests])
        if asked:
            tests = [test for test in tests if test.id() in set(asked)]
        unittest.TestSuite(tests).run(recorder)
        recorder.say(altered=bool(support.environment_altered))


if __name__ == "__main__":
    main()
