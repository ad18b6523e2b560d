"""`mp-all stat`, `top` and `memory_report` show device memory by holder."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import peer as p
import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
import mp_cuda
from mp_all import _stat, _top
from mp_cuda.sharing import holders


def devices_of(peer: p.Peer) -> list[dict[str, Any]]:
    return [each for each in mp.memory_report()["devices"] if each["pid"] == peer.process.pid]


def own() -> list[dict[str, Any]]:
    return [each for each in mp.memory_report()["devices"] if each["pid"] == os.getpid()]


def test_the_report_names_who_holds_how_much_of_which_device(peer: p.Peer) -> None:
    array = mp_cuda.from_host(bytes(1000))
    peer.call(p.keep, "a", array)
    peer.call(p.keep, "b", array)
    (holder,) = devices_of(peer)
    assert (holder["held_bytes"], holder["held_allocations"]) == (1000, 1)
    assert (holder["own_bytes"], holder["own_allocations"]) == (0, 0)
    (sender,) = own()
    assert (sender["own_bytes"], sender["own_allocations"], sender["held_bytes"]) == (1000, 1, 0)
    assert sender["device"] == holder["device"]


def test_memory_that_only_lingers_is_not_held(peer: p.Peer) -> None:
    peer.call(mp_cuda.set_policy)
    array = mp_cuda.from_host(bytes(1000))
    peer.call(p.keep, "a", array)
    assert devices_of(peer)
    peer.begin(forget, "a")
    peer.answer()
    assert until(lambda: not devices_of(peer), p.WAIT_S)
    peer.call(p.keep, "a", array)
    assert devices_of(peer)[0]["held_bytes"] == 1000


def forget(name: str) -> None:
    del p.KEPT[name]
    gc.collect()


def test_a_pipe_that_has_the_number_of_a_closed_memfd_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(holders, "memfds_of", lambda pid, name: [str(tmp_path / "pipe")])
    assert holders.list_holders([os.getpid()]) == []


def test_memory_that_everybody_has_released_is_nobodys(peer: p.Peer) -> None:
    peer.call(p.keep, "a", mp_cuda.from_host(bytes(1000)))
    peer.call(p.drop, "a")
    assert mp_cuda.wait_released(p.WAIT_S)
    assert not devices_of(peer) and not own()


def test_a_holder_that_was_killed_is_not_listed(mortal: p.Peer) -> None:
    mortal.call(p.keep, "a", mp_cuda.from_host(bytes(1000)))
    assert devices_of(mortal)
    pid = mortal.process.pid
    mortal.kill()
    assert not [each for each in mp.memory_report()["devices"] if each["pid"] == pid]


def test_stat_and_top_show_a_line_for_each_holder(peer: p.Peer, capsys: pytest.CaptureFixture[str]) -> None:
    array = mp_cuda.from_host(bytes(3 << 20))
    peer.call(p.keep, "a", array)
    _stat.stat()
    shown = capsys.readouterr().out.splitlines()
    (line,) = (line for line in shown if f" {peer.process.pid} " in line and "3.0 MiB" in line)
    assert line.split()[1:] == [str(peer.process.pid), "0", "bytes", "3.0", "MiB"]
    view = _top.plain(mp.memory_report(), _top.Change(), 1000)
    assert f"process {peer.process.pid} holds 3.0 MiB of other processes, and shares 0 bytes of its own" in view
    assert f"process {os.getpid()} holds 0 bytes of other processes, and shares 3.0 MiB of its own" in view


def test_the_timeline_shows_the_bytes_of_device_memory_in_a_message(tmp_path: Path) -> None:
    program = """
        import mp_all as mp
        import mp_cuda

        def receiver(inbox, outbox):
            while (arrays := inbox.get()) is not None:
                outbox.put(len(arrays))

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                ctx = mp.get_context("spawn")
                inbox, outbox = ctx.Queue(), ctx.Queue()
                process = ctx.Process(target=receiver, args=(inbox, outbox))
                process.start()
                array = mp_cuda.from_host(bytes(3000))
                inbox.put([array, array._replace(shape=(500,), strides=(1,))])
                outbox.get()
                inbox.put({"a": array, "needs a pickler": {1}})
                outbox.get()
                inbox.put(None)
                process.join()
    """
    succeeded(run_script(tmp_path, program))
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    found = sorted((e["name"], e["args"]["bytes"]) for e in events if "device memory" in e["name"])
    assert found == [
        ("pickle, with device memory", 3000),
        ("pickle, with device memory", 3500),
        ("unpickle, with device memory", 3000),
        ("unpickle, with device memory", 3500),
    ]
