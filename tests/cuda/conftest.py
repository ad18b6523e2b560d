"""The driver that the tests of mp-cuda run on, another process to talk to, and what must be even after each test."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator

import device
import pytest
from peer import Peer, clean
from support.waiting import until

import mp_cuda
from mp_cuda import signals


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(device.LABEL, bold=True)


def pytest_report_header() -> str:
    return device.LABEL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if device.HARDWARE and item.get_closest_marker("needs_stub"):
            item.add_marker(pytest.mark.skip(reason="needs the stub driver's gates, faults or counters"))
        if not device.HARDWARE and item.get_closest_marker("needs_gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: nox -s cuda on a machine that has one"))


@pytest.fixture(scope="session", autouse=True)
def driver() -> Iterator[device.Stub | None]:
    """
    The stub driver, or None on hardware.
    """
    if device.HARDWARE:
        assert mp_cuda.is_available(), "hardware was asked for and there is no CUDA device"
        yield None
        return
    pytest.importorskip("cuda.bindings", reason="the CUDA bindings are missing: pip install cuda-python")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build the stub driver with")
    stub = device.Stub()
    yield stub
    stub.close()


@pytest.fixture(scope="session")
def two_peers(driver: device.Stub | None) -> Iterator[list[Peer]]:
    peers = [Peer(), Peer()]
    yield peers
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(two_peers: list[Peer]) -> Peer:
    """
    Another process.
    """
    return two_peers[0]


@pytest.fixture
def third(two_peers: list[Peer]) -> Peer:
    """
    One more process.
    """
    return two_peers[1]


@pytest.fixture
def mortal() -> Iterator[Peer]:
    """
    A process of the test's own, which may be killed.
    """
    peer = Peer()
    yield peer
    if not peer.connection.closed:
        peer.close()


@pytest.fixture
def stub(driver: device.Stub | None) -> Iterator[device.Stub]:
    """
    The stub driver itself; tests that use it are marked `needs_stub`.
    """
    assert driver is not None
    yield driver
    driver.fail("", 0, 0)


@pytest.fixture
def gate(stub: device.Stub) -> Iterator[int]:
    """
    A gate that is shut, and open at the end, so that nothing waits for ever.
    """
    stub.shut(5)
    yield 5
    stub.open(5)


@pytest.fixture(autouse=True)
def even(request: pytest.FixtureRequest, leak_check: None, driver: device.Stub | None) -> Iterator[None]:
    """
    What was opened has been closed, what was allocated freed, and nothing was used after it had gone.
    """
    shared = request.getfixturevalue("two_peers") if "two_peers" in request.fixturenames else []
    before = driver.counters() if driver else {}
    yield

    def tidy() -> bool:
        gc.collect()
        signals.close_all()
        mp_cuda.ipc_collect()
        here = mp_cuda.ipc_stats()
        there = [peer.call(clean) for peer in shared]
        if any(s[k] for s in (here, *there) for k in ("live_sends", "mappings", "pending")):
            return False
        now = driver.counters() if driver else {}
        return all(
            now[a] - before[a] == now[b] - before[b]
            for a, b in (("allocs", "frees"), ("opens", "closes"), ("event_opens", "event_closes"))
            if driver
        )

    if not until(tidy, 20):
        counters = driver.counters() if driver else {}
        pytest.fail(f"not even: {mp_cuda.ipc_stats()}, {before} -> {counters}")
    if driver:
        assert driver.counters()["violations"] == before["violations"], driver.violations()
