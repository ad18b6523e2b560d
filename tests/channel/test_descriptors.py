"""Descriptors of connections with a ring: any number goes to one child, and a ring takes none that a program needs."""

from __future__ import annotations

import os
from typing import Any

import channel_tasks as tasks
import pytest
from support.scripts import run_python, succeeded

from mp_core.channels.channel_connections import ChannelConnection
from mp_core.children import child_descriptors


@pytest.mark.timeout(120)
def test_a_child_is_given_more_connections_than_a_fork_server_takes_descriptors(channels: Any) -> None:
    pipes = [channels.Pipe(False) for _ in range(child_descriptors.FORKSERVER_TAKES // 2 + 20)]
    ends = [end for pipe in pipes for end in pipe]
    assert all(type(end) is ChannelConnection for end in ends)
    child = channels.Process(target=tasks.send_on_each_other_one, args=(ends,))
    child.start()
    assert [pipe[0].recv() for pipe in pipes] == list(range(len(pipes)))
    child.join()
    assert child.exitcode == 0
    for end in ends:
        end.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_connections_arrive_where_the_socket_has_no_room(channels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_descriptors.passed_descriptors.Queue, "put", lambda *_: None)
    reader, writer = channels.Pipe(False)
    child = channels.Process(target=tasks.send_on_each_other_one, args=([reader, writer],))
    child.start()
    assert reader.recv() == 0
    child.join()
    assert child.exitcode == 0
    reader.close()
    writer.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_child_that_dies_before_it_takes_them_leaves_the_end_of_the_file(channels: Any) -> None:
    reader, writer = channels.Pipe(False)
    child = channels.Process(target=print, args=(tasks.Dies(), writer))
    child.start()
    writer.close()
    with pytest.raises(EOFError):
        reader.recv()
    child.join()
    assert child.exitcode == tasks.Dies.EXITCODE
    reader.close()


def test_rings_leave_half_of_the_descriptors_to_the_program() -> None:
    program = """
import os, resource
from mp_core.channels import channel_connections
from mp_core.sharing import backend
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
pipes = []
try:
    while True:
        pipes.append(channel_connections.pipe(False))
        pipes[-1][1].send(len(pipes))
except OSError:
    pass
assert [reader.recv() for reader, writer in pipes] == list(range(1, len(pipes) + 1))
rings = backend.channel_count() // 2
print(rings, len(pipes))
assert 10 <= rings <= 17, rings         # three descriptors each, up to number 50
assert len(pipes) >= rings + 20, pipes  # two each
assert (refused := backend.channels_refused()) >= 2 * (len(pipes) - rings)
for end in pipes.pop():
    end.close()
assert channel_connections.make_pair(False) is None and backend.channels_refused() == refused + 2  # as for a queue
"""
    succeeded(run_python("-c", program))


def test_a_ring_takes_one_descriptor_in_a_process_with_both_ends(forking: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = forking.Pipe()
    writer.send(1)
    assert reader.recv() == 1
    assert len(os.listdir("/proc/self/fd")) == before + 3
    reader.close()
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == before
