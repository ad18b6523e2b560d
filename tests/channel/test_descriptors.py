"""Descriptors of connections with a ring: any number goes to one child, and a ring takes none that a program needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import channel_tasks as tasks
import pytest
from support.scripts import run_python, run_script, succeeded

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


STREAMS_CLOSED = """
import os, sys
import mp_all as mp, numpy as np

if __name__ == "__main__":
    mp.set_sharing_strategy(sys.argv[2])
    context = mp.get_context(sys.argv[1])
    streams = [os.dup(stream) for stream in range(2)]
    for stream in range(2):  # the standard library passes on the third one
        os.close(stream)
    array = mp.shared.zeros(100_000)
    for stream in range(2):  # as code in C does that does not look
        try:
            os.write(stream, b"progress: 50 %\\n" * 1000)
        except OSError:
            pass
    queue = context.Queue()
    child = context.Process(target=queue.put, args=(np.ones(100_000),))
    child.start()
    got = queue.get(timeout=60).sum()
    child.join()
    found = [os.readlink(f"/proc/self/fd/{stream}") for stream in range(3) if os.path.exists(f"/proc/self/fd/{stream}")]
    for stream in range(2):
        os.dup2(streams[stream], stream)
    print(got, child.exitcode, [path for path in found if "mpshm" in path], flush=True)
"""


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_no_memory_of_a_session_is_where_a_program_without_standard_streams_writes(
    tmp_path: Path, start_method: str, strategy: str
) -> None:
    done = run_script(tmp_path, STREAMS_CLOSED, start_method, strategy)
    assert succeeded(done) == "100000.0 0 []\n"


def test_a_pipe_of_the_standard_library_is_closed_where_a_process_has_no_descriptor_left() -> None:
    program = """if True:
        import os, resource
        from multiprocessing import Pipe
        import mp_all

        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        readers = [Pipe(False)[0] for _ in range(10)]
        before = len(os.listdir("/proc/self/fd"))
        more = []
        try:
            while True:
                more.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for reader in readers:
            reader.close()
        for fd in more:
            os.close(fd)
        print(before - len(os.listdir("/proc/self/fd")))
    """
    assert succeeded(run_python("-c", program)) == "10\n"


@pytest.mark.parametrize("limit", range(2, 10))
def test_a_session_that_finds_no_descriptor_says_so(limit: int) -> None:
    program = f"""if True:
        import os, resource
        import mp_all as mp

        lowest = os.dup(0)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + {limit}, before[1]))
        try:
            mp.shared.zeros(10)
        except (MemoryError, OSError) as error:
            assert "no descriptor left" in str(error), error
        resource.setrlimit(resource.RLIMIT_NOFILE, before)  # the end of a session takes some as well
    """
    assert succeeded(run_python("-W", "ignore", "-c", program)) == ""
