"""The sentences about a run have the numbers of what the program did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recorded import data_of
from support.scripts import run_script, succeeded

UNITS = {"s": 1.0, "ms": 0.001}
PROGRAM = """
    import time
    import mp_all as mp

    def sleep(number):
        time.sleep(0.005 * number)

    if __name__ == "__main__":
        with mp.timeline("run.html"), mp.get_context("fork").Pool(2) as pool:
            pool.map(sleep, range(12), chunksize=1)
            pool.map(sleep, range(30), chunksize=15)
"""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder: Path = tmp_path_factory.mktemp("run")
    succeeded(run_script(folder, PROGRAM))
    found: list[str] = data_of(folder / "run.html")["sentences"]
    return found


def test_the_ten_longest_tasks_are_named_longest_first(sentences: list[str]) -> None:
    (longest,) = [sentence for sentence in sentences if "longest tasks of" in sentence]
    assert longest.startswith("The 10 longest tasks of 14 ")
    assert [int(index) for index in re.findall(r"at index (\d+)", longest)][:2] == [15, 0]  # the chunks of fifteen
    times = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (ms|s) at index", longest)]
    assert len(times) == 10 and times == sorted(times, reverse=True)


def test_an_uneven_share_is_named_with_a_chunksize_that_would_mend_it(sentences: list[str]) -> None:
    (uneven,) = [sentence for sentence in sentences if "chunksize=" in sentence]
    assert "of the work of sleep" in uneven and "in chunks of up to 15: chunksize=1 " in uneven


def sentences_of(folder: Path, body: str, start_method: str = "fork") -> str:
    program = f"""
        import time
        import numpy as np
        import mp_all as mp

        def sleep(seconds):
            time.sleep(seconds)

        def small(number):
            return number

        def total(array):
            return float(array[0])

        if __name__ == "__main__":
            arrays = [np.full(16 << 20, k, np.uint8) for k in range(8)]
            with mp.timeline("run.html"), mp.get_context("{start_method}").Pool(2) as pool:
                {body}
    """
    succeeded(run_script(folder, program))
    return "\n".join(data_of(folder / "run.html")["sentences"])


def test_the_headline_is_how_much_of_the_workers_was_used_and_when_the_first_task_began(tmp_path: Path) -> None:
    said = sentences_of(tmp_path, "pool.map(sleep, [0.25] * 4, chunksize=1); time.sleep(0.5)")
    headline, first, *_ = said.splitlines()
    found = re.fullmatch(
        r"Tasks add up to ([\d.]+) s; the run took ([\d.]+) s on 2 workers: (\d+) % of them used\.", headline
    )
    assert found, headline
    tasks, run, share = map(float, found.groups())
    assert 1 <= tasks < run < 60 and abs(share - 100 * tasks / (2 * run)) < 2
    assert re.match(r"The first task began after [\d.]+ ms: ", first)


def test_an_array_that_is_sent_again_and_again_should_be_shared_once(tmp_path: Path) -> None:
    said = sentences_of(tmp_path, "pool.map(total, [arrays[3]] * 12, chunksize=1)")
    assert re.search(r"MainProcess \(\d+\) copied the same 16.0 MiB for 12 messages. Share them once", said), said
    said = sentences_of(tmp_path, "pool.map(total, arrays, chunksize=1)")
    assert "Copying 128.0 MiB into shared memory took" in said and "install_shared_allocator" in said


def test_many_calls_of_tiny_tasks_are_told_of_map_and_a_map_of_its_chunksize(tmp_path: Path) -> None:
    said = sentences_of(tmp_path, "[pool.apply_async(small, (k,)) for k in range(400)][-1].wait(); time.sleep(0.1)")
    assert "one call of map, in the place of a call for each, with chunksize=" in said, said
    said = sentences_of(tmp_path, "pool.map(small, range(400), chunksize=1)")
    assert "so that sending them counts: chunksize=" in said, said


def test_a_start_that_takes_long_is_named_with_what_makes_it_short(tmp_path: Path) -> None:
    _, first, *_ = sentences_of(tmp_path, "pool.map(small, range(4))", "spawn").splitlines()
    assert re.search(r", [\d.]+ m?s until that worker had started, .*: keep a pool for several calls, or start", first)
    _, first, *_ = sentences_of(tmp_path, "pool.map(sleep, [1.0] * 2)").splitlines()
    assert "keep a pool" not in first
