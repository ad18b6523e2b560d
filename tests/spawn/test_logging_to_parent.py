"""Records of `logging` in ranks, workers and other children are handled by the process that asked for it."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script

import mp_all as mp

logger = logging.getLogger("a.child")


def log(number: int, what: str = "info") -> int:
    if what == "error":
        try:
            raise ValueError("boom")
        except ValueError:
            logger.exception("number %d", number, extra={"number": number, "object": object()})
    else:
        logger.info("number %d", number, extra={"number": number, "object": object()})
    return os.getpid()


def log_number(rank: int, number: int) -> None:
    log(number)


def log_in_grandchild(number: int) -> None:
    child = mp.get_context("spawn").Process(target=log, args=(number,))
    child.start()
    child.join()


def leave_with_enabled() -> None:
    sys.exit(int(logger.isEnabledFor(logging.CRITICAL)))


def log_length(length: int) -> None:
    logger.warning("%s", "é" * length)
    logger.warning("after it", extra={"long": "é" * length})


def log_and_die(number: int) -> None:
    log(number)
    os.kill(os.getpid(), signal.SIGKILL)


class Collected(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return sorted(record.getMessage() for record in self.records)


@pytest.fixture
def collected() -> Iterator[Collected]:
    """
    A handler of the root logger, at level INFO.
    """
    root = logging.getLogger()
    before, handler = root.level, Collected()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def test_a_process_a_pool_and_an_executor_log_to_their_parent(collected: Collected, ctx: BaseContext) -> None:
    with mp.logging_to_parent():
        process = ctx.Process(target=log, args=(1,), name="one of ours")
        process.start()
        process.join(60)
        with ctx.Pool(1) as pool:
            (pid,) = pool.map_async(log, [2]).get(timeout=60)
            pool.close()
            pool.join()
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=ctx) as executor:
            executor.submit(log, 3).result(timeout=60)
    assert collected.texts() == ["number 1", "number 2", "number 3"]
    of = {record.number: record for record in collected.records}
    assert (of[1].processName, of[1].process, of[2].process) == ("one of ours", process.pid, pid)
    assert (of[1].name, of[1].funcName, of[1].levelno, of[1].module) == (
        *("a.child", "log", logging.INFO),
        "test_logging_to_parent",
    )
    assert not hasattr(of[1], "object")  # an attribute that is neither a number nor a text


def test_ranks_log_to_their_parent(collected: Collected, start_method: str) -> None:
    with mp.logging_to_parent():
        mp.start_processes(log, nprocs=3, start_method=start_method)
    assert collected.texts() == ["number 0", "number 1", "number 2"]
    assert sorted(record.processName for record in collected.records) == ["rank 0", "rank 1", "rank 2"]


def test_a_grandchild_logs_to_the_same_process(collected: Collected, ctx: BaseContext) -> None:
    with mp.logging_to_parent():
        child = ctx.Process(target=log_in_grandchild, args=(7,))
        child.start()
        child.join(60)
    assert collected.texts() == ["number 7"]


def test_a_traceback_arrives_as_text(collected: Collected) -> None:
    with mp.logging_to_parent():
        mp.start_processes(log, args=("error",), nprocs=1)
    (record,) = collected.records
    assert logging.Formatter().format(record).endswith("ValueError: boom")


def test_a_logger_has_the_level_in_a_child_that_it_has_here(collected: Collected, ctx: BaseContext) -> None:
    logging.root.setLevel(logging.WARNING)  # and below it, for one of them
    logging.getLogger("a").setLevel(logging.INFO)
    try:
        with mp.logging_to_parent():
            process = ctx.Process(target=log, args=(1,))
            process.start()
            process.join(60)
            logging.disable(logging.CRITICAL)
            process = ctx.Process(target=leave_with_enabled)
            process.start()
            process.join(60)
            assert process.exitcode == 0
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger("a").setLevel(logging.NOTSET)
    assert collected.texts() == ["number 1"]


LIBRARY = """
    import enum, logging
    class Own(logging.Logger):
        def shout(self, text): self.log(5, text)
    logging.setLoggerClass(Own)
    logger = logging.getLogger("library")
    def work(*rank): logger.shout("shouted"); logging.getLogger("plain").log(7, "said")
"""
PROGRAM = """
    import enum, logging, sys
    import mp_all as mp
    class Level(enum.IntEnum): LOW = 7
    def main(start_method):
        logging.getLogger("plain").setLevel(Level.LOW)
        logging.getLogger().getChild("root").setLevel(logging.CRITICAL)  # not the root logger, in spite of its name
        import library
        library.logger.setLevel(5)
        logging.basicConfig(level=5, format="%(message)s", stream=sys.stdout)
        with mp.logging_to_parent():
            mp.run(library.work, nprocs=1, start_method=start_method)
            with mp.get_context(start_method).Pool(1) as pool: pool.apply(library.work)
    if __name__ == "__main__": main(sys.argv[1])
"""


def test_a_class_of_loggers_and_odd_levels_of_a_program_stay_as_they_are(tmp_path: Path, start_method: str) -> None:
    (tmp_path / "library.py").write_text(textwrap.dedent(LIBRARY))
    done = run_script(tmp_path, PROGRAM, start_method)
    assert done.stdout.split() == ["shouted", "said"] * 2, done.stderr


def test_the_levels_of_both_sides_hold(collected: Collected) -> None:
    with mp.logging_to_parent(level=logging.ERROR):
        mp.start_processes(log, nprocs=1)
        mp.start_processes(log, args=("error",), nprocs=1)
    assert [record.levelname for record in collected.records] == ["ERROR"]
    logging.getLogger("a").setLevel(logging.CRITICAL)
    try:
        with mp.logging_to_parent():
            mp.start_processes(log, args=("error",), nprocs=1)
    finally:
        logging.getLogger("a").setLevel(logging.NOTSET)
    assert len(collected.records) == 1


@pytest.mark.parametrize("length", [30_000, 3_000_000])
def test_a_long_text_is_cut_and_the_next_record_arrives(collected: Collected, length: int) -> None:
    with mp.logging_to_parent():
        child = mp.get_context("spawn").Process(target=log_length, args=(length,))
        child.start()
        child.join(60)
    assert collected.texts()[0] == "after it"
    assert collected.texts()[1].endswith(f"... ({length} characters)")


def test_a_child_that_is_killed_loses_nothing_that_it_has_logged(collected: Collected, ctx: BaseContext) -> None:
    with mp.logging_to_parent():
        child = ctx.Process(target=log_and_die, args=(5,))
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert collected.texts() == ["number 5"]


def test_a_handler_that_raises_does_not_end_the_reception(collected: Collected) -> None:
    def refuse(record: Any) -> bool:
        if getattr(record, "number", None) == 0:
            raise RuntimeError("refused")
        return True

    logger.addFilter(refuse)
    try:
        with mp.logging_to_parent():
            mp.start_processes(log, nprocs=2)
    finally:
        logger.removeFilter(refuse)
    assert collected.texts() == ["a record of a child could not be handled", "number 1"]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_handler_that_raises_for_the_report_too_does_not_end_it(
    collected: Collected, error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    class Refusing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "mp_spawn" or getattr(record, "number", None) == 0:
                raise error("refused")

    handler = Refusing()
    logging.getLogger().addHandler(handler)  # after the one that collects
    try:
        with mp.logging_to_parent():
            for number in range(3):
                mp.start_processes(log_number, args=(number,), nprocs=1)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [text for text in collected.texts() if text.startswith("number")] == ["number 0", "number 1", "number 2"]
    assert f"{error.__name__}: refused" in capfd.readouterr().err


def test_after_its_end_children_log_by_themselves(collected: Collected) -> None:
    mp.logging_to_parent().close()
    with mp.logging_to_parent():
        with mp.logging_to_parent() as inner:
            pass
        inner.close()
        mp.start_processes(log, nprocs=1)
    assert collected.texts() == ["number 0"]
    mp.start_processes(log, nprocs=1, start_method="fork")
    assert collected.texts() == ["number 0"]


ORPHAN = """
    import logging, os, select, signal, sys, threading, time
    import mp_all as mp

    def log(parent, stop):
        end = os.pidfd_open(parent)
        logging.warning("first")
        # Its children have another parent as soon as all its threads are ending, which may be before the last of them
        # has closed the descriptors.
        select.select([end], [], [])
        for number in range(2000):  # more than a socket holds
            logging.warning("orphan %d %s", number, "x" * 1000)
        open(stop, "w").close()
        os._exit(0)

    def wait_for(stop):
        open(stop + " begun", "w").close()
        while not os.path.exists(stop):
            time.sleep(0.01)
        os._exit(0)

    if __name__ == "__main__":
        came = threading.Event()
        logging.basicConfig(format="parent: %(message)s", stream=sys.stdout)
        after = logging.Handler()  # handlers are called in order
        after.emit = lambda record: came.set()
        logging.getLogger().addHandler(after)
        mp.logging_to_parent()
        own, stop = os.getpid(), sys.argv[2]
        mp.get_context(sys.argv[1]).Process(target=log, args=(own, stop)).start()
        assert came.wait(50)
        # A forked sibling that lives on must not keep the connection of the other open.
        mp.get_context("fork").Process(target=wait_for, args=(stop,)).start()
        while not os.path.exists(stop + " begun"):  # it has it until its hooks of the fork have run
            time.sleep(0.01)
        sys.stdout.flush()
        os.kill(own, signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_whose_parent_was_killed_logs_to_its_standard_error_and_does_not_hang(
    method: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    # Its processes end at once and without a manager, so the folder of their session stays for the next program.
    with tempfile.TemporaryDirectory(prefix="mpshm-") as folder:
        done = run_script(tmp_path, ORPHAN, method, str(stop), timeout=60, MPSHM_RUNTIME_DIR=folder)
    assert done.returncode == -signal.SIGKILL
    assert stop.exists()
    assert "parent: first" in done.stdout
    assert done.stderr.count("orphan") == 2000, done.stderr[:2000]


def test_records_of_children_that_a_program_does_not_wait_for_arrive_before_it_ends(tmp_path: Path) -> None:
    text = """
        import logging, sys, time
        import mp_all as mp

        def log():
            time.sleep(0.5)
            logging.info("late")

        if __name__ == "__main__":
            logging.basicConfig(format="parent: %(message)s", stream=sys.stdout, level=logging.INFO)
            mp.logging_to_parent()
            mp.get_context("spawn").Process(target=log).start()
        """
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent: late\n", "")
