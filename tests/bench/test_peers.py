"""Each peer describes its use; a missing, hanging or failing peer is reported and does not end the run."""

from __future__ import annotations

import inspect
import os
import signal
import time

import pytest

from benchmarks import bench, install
from benchmarks.driver import Driver, Stage, WorkFailed, descendants
from benchmarks.peers import PEERS, Peer
from benchmarks.work import round_trips

STANDARD = ["stdlib", "by hand", "by hand, new", "Pool"]


class Absent(Peer):
    """A peer that is never installed."""

    name = "absent"
    needs = "a_module_that_does_not_exist"
    distribution = "a-distribution-that-does-not-exist"


def start_and_stop(stage: Stage) -> None:
    """Start a process and never end."""
    stage.ask()
    signal.pause()


def test_each_peer_describes_its_use() -> None:
    for name, peer in PEERS.items():
        assert peer.name == name
        assert inspect.isclass(peer) and "__doc__" in vars(peer) and peer.how().endswith(".")
        assert "|" not in peer.how(), "it is a table cell"


@pytest.mark.parametrize("name", STANDARD)
def test_a_peer_answers_with_the_sum_of_first_and_last(name: str) -> None:
    driver = Driver(name)
    try:
        assert driver.missing == ""
        assert len(driver.do(round_trips, "fresh", 1000, 3, timeout=60)) == 3
        assert driver.do(answer, timeout=60) == 2.0
    finally:
        driver.close()


def answer(stage: Stage) -> float:
    return float(stage.ask()(stage.peer.fresh(1000)))


def test_a_peer_that_is_not_installed_is_missing_with_its_reason_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ImportError) as error:
        Absent().open()
    monkeypatch.setattr(install, "REASONS", install.Path(os.devnull + "-is-no-folder"))
    told = bench.because(Absent, str(error.value))
    assert told == "No module named 'a_module_that_does_not_exist'; `nox -s bench -- --peers` installs it"


def test_the_output_of_pip_is_the_reason(tmp_path: install.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "REASONS", tmp_path / "reasons.json")
    said = "Collecting it\nERROR: No matching distribution found for it\n"
    install.REASONS.write_text(install.json.dumps({Absent.distribution: install.reason(said)}))
    assert bench.because(Absent, "gone") == "gone; pip: No matching distribution found for it"


def test_every_peer_that_can_be_installed_is_in_its_group() -> None:
    groups = {option: install.requirements([option.removeprefix("--")]) for option in ("--torch", "--peers")}
    named = {option: {install.distribution(requirement) for requirement in group} for option, group in groups.items()}
    for peer in PEERS.values():
        if peer.distribution and peer.option:
            assert peer.distribution in named[peer.option]


def test_a_peer_that_hangs_is_ended_with_all_it_has_started() -> None:
    driver = Driver("stdlib")
    pid = driver._process.pid
    assert pid is not None
    with pytest.raises(WorkFailed, match="stdlib: no answer within 2 s"):
        driver.do(start_and_stop, timeout=2)
    assert descendants(pid) == [] and driver._process.exitcode == -signal.SIGKILL
    with pytest.raises(WorkFailed, match="its process has ended"):
        driver.do(start_and_stop, timeout=2)
    driver.close()


def test_only_the_peers_that_a_row_needs_are_running() -> None:
    with bench.opened(["stdlib", "Pool"]) as running:
        running.on_stage(["stdlib", "ours"])
        assert running.has("stdlib") and not running.has("ours") and not running.has("Pool")
        running.on_stage(["Pool"])
        assert running.has("Pool") and not running.has("stdlib")
        begin = time.monotonic()
    assert not running.has("Pool") and time.monotonic() - begin < 60
