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
