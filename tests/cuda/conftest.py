"""Fixtures: the driver that the tests of mp-cuda run on, other processes, and a leak check after each test."""

from __future__ import annotations

import gc
import importlib.util
import shutil
from collections.abc import Iterator

import device
import pytest
from peer import Peer, clean
from support.waiting import until

import mp_cuda
from mp_cuda.sharing import ipc_events


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
            item.add_marker(pytest.mark.skip(reason="needs a GPU: python3 -m tools.gpu on a machine that has one"))


@pytest.fixture(scope="session", autouse=True)
def driver() -> Iterator[device.Stub | None]:
    """
    Build and load the stub driver; None on hardware.
    """
    if device.HARDWARE:
        assert mp_cuda.is_available(), "hardware was asked for and there is no CUDA device"
        warm_up()
        yield None
        return
    pytest.importorskip("cuda.bindings", reason="the CUDA bindings are missing: pip install cuda-python")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build the stub driver with")
    stub = device.Stub()
    send_once()
    yield stub
    stub.close()


def send_once() -> None:
    """
    Send an array: a process that has done so keeps a descriptor, with its numbers for others.
    """
    mp_cuda.share(mp_cuda.from_host(b"warm"))
    mp_cuda.ipc_collect()
    assert mp_cuda.wait_released(20)


def warm_up() -> None:
    """
    Use the device by each library that is installed: they open descriptors at their first use, which are no leaks.
    """
    mp_cuda.from_host(b"warm").copy_to_host()
    send_once()
    for name, use in (("torch", "torch.ones(1, device='cuda')"), ("cupy", "cupy.ones(1)")):
        if importlib.util.find_spec(name) is not None:
            exec(f"import {name}\n{use}")


@pytest.fixture(scope="session")
def two_peers(driver: device.Stub | None) -> Iterator[list[Peer]]:
    peers = [Peer(), Peer()]
    yield peers
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(two_peers: list[Peer]) -> Peer:
    """
    Start another process, shared by the tests.
    """
    return two_peers[0]


@pytest.fixture
def third(two_peers: list[Peer]) -> Peer:
    """
    Start one more process, shared by the tests.
    """
    return two_peers[1]


@pytest.fixture
def mortal() -> Iterator[Peer]:
    """
    Start a process for one test, which may kill it.
    """
    peer = Peer()
    yield peer
    if not peer.connection.closed:
        peer.close()


@pytest.fixture
def stub(driver: device.Stub | None) -> Iterator[device.Stub]:
    """
    Return the stub driver itself; mark tests that use it `needs_stub`.
    """
    assert driver is not None
    yield driver
    driver.fail("", 0, 0)
    driver.pause("", 0)


@pytest.fixture
def gate(stub: device.Stub) -> Iterator[int]:
    """
    Close a gate, and open it at the end, so that no stream waits for ever.
    """
    stub.close_gate(5)
    yield 5
    stub.open_gate(5)


@pytest.fixture(autouse=True)
def balanced(request: pytest.FixtureRequest, leak_check: None, driver: device.Stub | None) -> Iterator[None]:
    """
    Check that all that was opened is closed, all that was allocated is freed, and nothing was used after its end.
    """
    shared = request.getfixturevalue("two_peers") if "two_peers" in request.fixturenames else []
    before = driver.counters() if driver else {}
    yield

    def cleaned_up() -> bool:
        gc.collect()
        ipc_events.close_all()
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

    if not until(cleaned_up, 20):
        counters = driver.counters() if driver else {}
        pytest.fail(f"not balanced: {mp_cuda.ipc_stats()}, {before} -> {counters}")
    if driver:
        assert driver.counters()["violations"] == before["violations"], driver.violations()
