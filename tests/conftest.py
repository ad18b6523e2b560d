"""Fixtures of every test: the strategies, the start methods, carriers, and the leak check."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from multiprocessing import forkserver, util
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies
from support import carriers, child_main, leaks

import mp_all as mp
from mp_core.installation import contexts

# One cell of the matrix can be asked for: MP_TEST_STRATEGY=file_system.
ASKED = os.environ.get("MP_TEST_STRATEGY")
STRATEGIES = [ASKED] if ASKED else sorted(mp.get_all_sharing_strategies())
START_METHODS = mp.get_all_start_methods()
settings.register_profile("no time", deadline=None)  # a busy machine takes any time
settings.load_profile("no time")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-strategy-tests", action="store_true", help="run only tests that depend on the strategy")


def pytest_configure(config: pytest.Config) -> None:
    """
    Let the programs of this run put their temporary files in one folder: a killed one does not remove its own.
    """
    # Programs ignore what their parent ignores: SIGINT in the background of a shell, SIGHUP under nohup.
    for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)
    # See Note [Children without pytest].
    main = sys.modules["__main__"]
    main.__spec__, main.__file__ = None, child_main.__file__
    if hasattr(config, "workerinput"):  # a process of xdist, which has the environment of the first one
        return
    os.environ.pop("PYTHONUNBUFFERED", None)  # programs print as a user's do
    config.stash[NOTES] = os.environ.pop("MP_TEST_NOTES", "")  # not for a run inside this one
    # The threads of OpenBLAS look for work for 2^26 cycles before they sleep: two fifths of the processor time of
    # a child that imports NumPy. The least is 2^4.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # `tmp_path` outlives the run
    folder = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="mp-tests-")
    # multiprocessing removes its own folder in there with priority -100, and prints a traceback if it has gone.
    util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-101)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--only-strategy-tests"):
        kept: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            kept["strategy" in getattr(item, "fixturenames", ())].append(item)
        config.hook.pytest_deselected(items=kept[False])
        items[:] = kept[True]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    """
    Each sharing strategy in turn, in force during the test.
    """
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest) -> str:
    """
    Each start method in turn.
    """
    return request.param


@pytest.fixture
def ctx(start_method: str) -> BaseContext:
    """
    The multiprocessing context of the start method.
    """
    return mp.get_context(start_method)


@pytest.fixture
def channels(start_method: str) -> BaseContext:
    """
    The context of the start method whose pipes and queues are channels, whatever MP_CHANNEL says.
    """
    return contexts.default_context.get_context(start_method)


@pytest.fixture(params=carriers.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """
    Each kind of channel in turn.
    """
    return request.param


@pytest.fixture(scope="session")
def fleet() -> Iterator[carriers.Fleet]:
    fleet = carriers.Fleet()
    yield fleet
    fleet.close()


@pytest.fixture
def carrier(fleet: carriers.Fleet, kind: str, start_method: str, strategy: str) -> carriers.Carrier:
    """
    A child behind each kind of channel, under each start method and strategy.
    """
    return fleet.get(kind, start_method)


@pytest.fixture
def echo(fleet: carriers.Fleet, start_method: str, strategy: str) -> carriers.Carrier:
    """
    A child behind a pipe, for properties that do not depend on the channel.
    """
    return fleet.get("pipe", start_method)


@pytest.fixture
def needs_memory() -> Callable[[int], None]:
    """
    Skip the test unless that many bytes are free, in memory and where shared memory lives.
    """

    def check(nbytes: int) -> None:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
        if mp.get_sharing_strategy() == "file_system":
            fs = os.statvfs("/dev/shm")
            free = min(free, fs.f_bavail * fs.f_frsize)
        if free < nbytes:
            pytest.skip(f"{free} bytes of memory are free, {nbytes} are needed")

    return check


@pytest.fixture(scope="session", autouse=True)
def resources_made_once() -> None:
    """
    Exclude from the leak check the resources that a process makes once, and every test collected so far.
    """
    leaks.warm_up()
    # Hypothesis makes a generator of random numbers at its first test, and warns when it finds no reference to it. From
    # CPython 3.14 on, the one that is left is in an object that is frozen below.
    given(strategies.none())(lambda _: None)()
    # The leak check collects garbage around each test; what exists before the first is no garbage of theirs.
    gc.collect()
    gc.freeze()


FAILED = pytest.StashKey[bool]()
# The file for what has failed, which `./do` shows last.
NOTES = pytest.StashKey[str]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    failed = report.failed or hasattr(report, "wasxfail")
    item.stash[FAILED] = item.stash.get(FAILED, False) or failed
    if report.failed and (notes := item.config.stash.get(NOTES, "")):
        crash = getattr(report.longrepr, "reprcrash", None)
        with open(notes, "a") as file:
            print(f"{report.nodeid} ({report.when}): {getattr(crash, 'message', report.longrepr)}", file=file)
    return report


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest, resources_made_once: None) -> Iterator[None]:
    """
    Check that nothing that a test opens, starts or names is left after it.
    """
    # A carrier's child outlives the test, and so does the fork server: both start before the count.
    if "start_method" in request.fixturenames and request.getfixturevalue("start_method") == "forkserver":
        forkserver.ensure_running()
    shared = [request.getfixturevalue(n) for n in ("carrier", "echo") if n in request.fixturenames]
    before = leaks.before_a_test()
    yield
    for carrier in shared:
        carrier.rest()
    # A failed test is red already, and its traceback holds everything that its frames held.
    if not request.node.stash.get(FAILED, False):
        remaining = leaks.leaks_since(before)
        assert not remaining, "left behind:\n  " + "\n  ".join(remaining)
