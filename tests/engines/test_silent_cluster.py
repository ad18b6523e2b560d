"""A Ray cluster that does not answer any more holds up no program that ends."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mp_nodes.engines import ray_agents


@pytest.fixture
def silence() -> Any:
    """A call that returns at the end of the test."""
    over = threading.Event()
    yield lambda *_args, **_options: over.wait()
    over.set()
    for thread in threading.enumerate():
        if thread.name == "mp-spawn ray":
            thread.join()


def test_the_end_of_a_job_names_what_a_silent_cluster_may_keep(
    silence: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    util = ModuleType("ray.util")
    util.remove_placement_group = silence  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.util", util)
    monkeypatch.setattr(ray_agents, "TO_ANSWER", 0.2, raising=False)
    agents = object.__new__(ray_agents.RayAgents)
    agents._ray, agents._group = SimpleNamespace(kill=silence, is_initialized=lambda: True), object()
    agents._actors, agents._candidates, agents._polls, agents._held = [object(), object()], {}, {}, []
    closing = threading.Thread(target=agents.close, args=(0,), daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 actors may still run" in line and "placement group" in line
