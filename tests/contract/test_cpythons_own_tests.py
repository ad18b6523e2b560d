"""A part of CPython's own tests passes on mp_all; `nox -s contract-3.11` compares the whole."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("cpython")))

from redirect import redirected
from sides import Side

# Tests of every kind that do not depend on time: processes, queues, pipes, pools, shared values, managers.
CHOSEN = [
    "processes.MiscTestCase.test__all__",
    "processes.WithProcessesTestProcess.test_args_argument",
    "processes.WithProcessesTestProcess.test_process",
    "processes.WithProcessesTestSubclassingProcess.test_subclassing",
    "processes.WithProcessesTestQueue.test_closed_queue_put_get_exceptions",
    "processes.WithProcessesTestQueue.test_fork",
    "processes.WithProcessesTestQueue.test_queue_feeder_donot_stop_onexc",
    "processes.WithProcessesTestConnection.test_context",
    "processes.WithProcessesTestConnection.test_fd_transfer",
    "processes.WithProcessesTestConnection.test_spawn_close",
    "processes.WithProcessesTestPicklingConnections.test_pickling",
    "processes.WithProcessesTestListenerClient.test_listener_client",
    "processes.WithProcessesTestPool.test_apply",
    "processes.WithProcessesTestPool.test_async",
    "processes.WithProcessesTestPool.test_imap",
    "processes.WithProcessesTestPool.test_imap_unordered",
    "processes.WithProcessesTestPool.test_map",
    "processes.WithProcessesTestPool.test_map_unplicklable",
    "processes.WithProcessesTestPool.test_starmap",
    "processes.WithProcessesTestPool.test_traceback",
    "processes.WithProcessesTestValue.test_value",
    "processes.WithProcessesTestArray.test_array",
    "processes.WithProcessesTestSharedCTypes.test_sharedctypes",
    "processes.WithManagerTestContainers.test_dict",
    "processes.WithManagerTestContainers.test_list",
]
# Where every child begins with a bare interpreter, some that stand for the others.
FEW = {
    "processes.WithProcessesTestConnection.test_fd_transfer",
    "processes.WithProcessesTestPool.test_map",
    "processes.WithProcessesTestPool.test_starmap",
    "processes.WithProcessesTestPool.test_traceback",
    "processes.WithProcessesTestQueue.test_fork",
}


def own_tests(method: str) -> Side:
    if importlib.util.find_spec("test._test_multiprocessing") is None:
        pytest.skip("needs test._test_multiprocessing, which this interpreter was installed without")
    tests = CHOSEN if method == "fork" else sorted(FEW)
    return Side("mp_all", "multiprocessing", method, tests, patience=90)


def test_chosen_tests_of_cpython_pass(start_method: str) -> None:
    side = own_tests(start_method)
    try:
        while side.step():
            pass
    finally:
        side.close()
    assert {name: said for name, said in side.statuses.items() if said[0] != "passed"} == {}
    assert set(side.statuses) == set(side.wanted or ())


OF_ALL_KINDS = """
    import os
    import unittest

    class Kinds(unittest.TestCase):
        def test_a_passes(self): pass
        def test_b_dies(self): os._exit(3)
        def test_c_is_skipped(self): self.skipTest("needs nothing")
        def test_d_fails(self): self.fail("of itself")
        def test_e_fails_in_part(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)
        def test_f_raises(self): raise ValueError("raised")
"""


def test_a_test_that_dies_costs_itself_and_each_status_is_reported(tmp_path: Path) -> None:
    for name in ("side.py", "redirect.py"):
        shutil.copy(Path(__file__).with_name("cpython") / name, tmp_path)
    (tmp_path / "processes.py").write_text(textwrap.dedent(OF_ALL_KINDS))
    side = Side("mp_all", "multiprocessing", "fork", None, patience=90, script=tmp_path / "side.py")
    try:
        while side.step():
            pass
    finally:
        side.close()
    said = {name.rsplit("_", 1)[-1]: status for name, (status, _) in side.statuses.items()}
    assert said == {
        "passes": "passed",
        "dies": "died",
        "skipped": "skipped",
        "fails": "failed",
        "part": "failed",
        "raises": "error",
    }
    assert side.runs == 2


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("import multiprocessing", "import mp_all as multiprocessing"),
        ("import multiprocessing as mp", "import mp_all as mp"),
        ("import multiprocessing.pool", "import mp_all.pool, mp_all as multiprocessing"),
        ("from multiprocessing import util", "from mp_all import util"),
        ("from multiprocessing.pool import Pool", "from mp_all.pool import Pool"),
        (
            "'import multiprocessing; multiprocessing.Pool()'",
            "'import mp_all as multiprocessing; multiprocessing.Pool()'",
        ),
        ("import multiprocessing_on_dill", "import multiprocessing_on_dill"),
    ],
)
def test_an_import_is_changed_as_a_user_would_change_it(line: str, changed: str) -> None:
    assert redirected(line) == changed
