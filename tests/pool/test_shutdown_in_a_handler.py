"""A signal handler that interrupts a submit and ends the pool: nothing hangs, and each future is done."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

pytestmark = pytest.mark.timeout(120)

HEAD = """
    import multiprocessing, random, signal, sys, time
    import mp_all as mp

    def interrupt(seconds, handler):
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def use_a_copy():
        try:
            executor.submit(abs, -1)
        except ValueError:
            executor.shutdown()
            return len(multiprocessing.active_children())

    if __name__ == "__main__":
        chance, context = random.Random(5), mp.get_context("fork")
"""


def run(folder: Path, text: str, *arguments: str) -> None:
    """Run *text* as the main program."""
    program = HEAD + textwrap.indent(textwrap.dedent(text), "        ")
    succeeded(run_script(folder, program, *arguments))


@pytest.mark.parametrize(
    "end", ["shutdown()", "shutdown(cancel_futures=True)", "kill_workers()", "terminate_workers()"]
)
def test_an_executor_is_ended_by_a_handler_that_interrupts_submit(tmp_path: Path, end: str) -> None:
    text = f"""
        for _ in range(15):
            executor, futures = mp.ProcessPoolExecutor(2, context), []
            executor.submit(abs, -1).result(60)
            interrupt(chance.uniform(0.0005, 0.01), lambda: executor.{end})
            try:
                while True:
                    futures.append(executor.submit(abs, -1))
            except RuntimeError:
                executor.shutdown()  # waits, as nothing is interrupted now
            assert all(future.done() for future in futures), [future for future in futures if not future.done()]
            assert {end!r} != "shutdown()" or all(future.result() == 1 for future in futures)
    """
    run(tmp_path, text)


def test_a_pool_is_terminated_by_a_handler_that_interrupts_apply_async(tmp_path: Path) -> None:
    text = """
        for _ in range(15):
            pool, results = context.Pool(2), []
            pool.apply(abs, (-1,))
            interrupt(chance.uniform(0.0005, 0.01), pool.terminate)
            try:
                while True:
                    results.append(pool.apply_async(abs, (-1,)))
            except ValueError:
                pool.join()  # it has been terminated
            assert all(result.ready() for result in results)
    """
    run(tmp_path, text)


@pytest.mark.parametrize("end", ["kill_workers", "terminate_workers", "shutdown"])
def test_an_executor_ends_although_callbacks_submit(tmp_path: Path, end: str) -> None:
    text = """
        for _ in range(60):
            executor = mp.ProcessPoolExecutor(2, context)

            def again(_):
                try:
                    executor.submit(abs, -1)
                except RuntimeError:
                    pass

            executor.submit(time.sleep, 0.002).add_done_callback(again)
            interrupt(chance.uniform(0.0005, 0.004), getattr(executor, sys.argv[1]))
            try:
                while True:
                    executor.submit(abs, -1)
            except RuntimeError:
                executor.shutdown()
    """
    run(tmp_path, text, end)


def test_a_shutdown_interrupts_a_shutdown(tmp_path: Path) -> None:
    text = """
        for _ in range(150):
            executor = mp.ProcessPoolExecutor(2, context)
            executor.submit(abs, -1).result()
            interrupt(chance.uniform(5e-6, 40e-6), executor.shutdown)
            executor.shutdown(wait=False)
            executor.shutdown()
    """
    run(tmp_path, text)


def test_a_forked_worker_cannot_use_its_copy_of_the_executor(tmp_path: Path) -> None:
    text = """
        executor = mp.ProcessPoolExecutor(2, context)
        assert [executor.submit(use_a_copy).result() for _ in range(4)] == [0] * 4
        executor.shutdown()
    """
    run(tmp_path, text)


def test_a_handler_that_interrupts_the_first_submit_submits(tmp_path: Path) -> None:
    text = """
        for _ in range(20):
            executor, futures = mp.ProcessPoolExecutor(8, context), []
            interrupt(chance.uniform(0.0005, 0.01), lambda: futures.append(executor.submit(abs, -2)))
            futures.append(executor.submit(abs, -1))
            while len(futures) < 2:
                time.sleep(0.001)
            assert sorted(future.result() for future in futures) == [1, 2]
            executor.shutdown()
    """
    run(tmp_path, text)


def test_a_handler_that_interrupts_the_first_submit_kills_the_workers(tmp_path: Path) -> None:
    text = """
        for _ in range(20):
            executor = mp.ProcessPoolExecutor(8, context)
            interrupt(chance.uniform(0.0005, 0.01), executor.kill_workers)
            try:
                future = executor.submit(time.sleep, 300)
            except RuntimeError:
                continue
            while not future.done():
                time.sleep(0.001)
            assert future.cancelled() or isinstance(future.exception(), Exception)
            executor.shutdown()
    """
    run(tmp_path, text)
