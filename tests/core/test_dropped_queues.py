"""The memory of messages that nobody read is freed when the last end of their queue that could read them is closed."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.carriers import TIMEOUT
from support.scripts import run_script, succeeded
from support.sessions import in_flight_bytes
from support.waiting import until

import mp_all as mp
from mp_core.channels import unread
from mp_core.installation import contexts
from mp_core.sharing import backend

LARGE = 1 << 18


def in_flight() -> int:
    gc.collect()
    return mp.memory_stats()["in_flight_bytes"]


def simple(ctx: Any) -> tuple[Any, Callable[[Any], None]]:
    queue = ctx.SimpleQueue()
    return queue, queue.put


def pipe(ctx: Any) -> tuple[Any, Callable[[Any], None]]:
    ends = ctx.Pipe(False)
    return ends, ends[1].send


@pytest.mark.parametrize("make", [simple, pipe])
@pytest.mark.parametrize("array", [np.ones, mp.shared.zeros], ids=["private", "shared"])
def test_a_dropped_queue_gives_the_memory_of_its_messages_back(ctx, strategy: str, make, array) -> None:
    kept, put = make(ctx)
    for _ in range(3):
        put([array(LARGE), {"more": array(LARGE)}])
    assert in_flight() == 6 * 8 * LARGE
    del kept, put
    assert until(lambda: in_flight() == 0)


def test_so_does_a_queue_with_a_feeder_thread(ctx, strategy: str) -> None:
    queue = ctx.Queue()
    for _ in range(3):
        queue.put(np.ones(LARGE))
    assert until(lambda: in_flight() == 3 * 8 * LARGE)
    del queue
    assert until(lambda: in_flight() == 0)


def read_one(reader, go, done) -> None:
    go.wait(TIMEOUT)
    done.put(float(reader.recv().sum()))


def test_another_process_that_can_read_still_gets_every_message(ctx, strategy: str) -> None:
    reader, writer = ctx.Pipe(False)
    go, done = ctx.Event(), ctx.Queue()
    process = ctx.Process(target=read_one, args=(reader, go, done))
    process.start()
    writer.send(np.ones(LARGE))
    reader.close()
    assert in_flight() == 8 * LARGE
    go.set()
    assert done.get(timeout=TIMEOUT) == LARGE
    process.join(TIMEOUT)
    assert process.exitcode == 0
    writer.close()
    done.close()
    done.join_thread()


def put_and_end(queue) -> None:
    queue.put(np.ones(LARGE))


def test_the_results_of_processes_that_have_ended_are_freed_with_the_queue(ctx, strategy: str) -> None:
    kept = mp.shared.zeros(10)  # the session goes on
    queue = ctx.SimpleQueue()
    for _ in range(2):
        process = ctx.Process(target=put_and_end, args=(queue,))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode == 0
        process.close()
    assert in_flight_bytes() == 2 * 8 * LARGE
    queue.close()
    assert until(lambda: in_flight_bytes() == 0)
    del kept


def test_half_a_message_of_a_killed_writer_is_no_obstacle(strategy: str) -> None:
    reader, writer = connection.Pipe(False)  # a ring has whole messages only
    writer.send(np.ones(LARGE))
    os.write(writer.fileno(), b"\0\0\1\0half")
    writer.send(np.ones(LARGE))
    assert in_flight() == 2 * 8 * LARGE
    reader.close()
    assert in_flight() == 0
    with pytest.raises(BrokenPipeError):
        writer.send(np.ones(LARGE))
    assert in_flight() == 0
    writer.close()


@pytest.mark.parametrize("make", [connection.Pipe, mp.Pipe], ids=["pipe", "ring"])
def test_a_writer_at_work_gets_an_error_or_its_messages_are_freed(strategy: str, make: Any) -> None:
    for _ in range(20):
        reader, writer = make(False)
        full, ended = threading.Event(), []

        def write(writer: Any = writer, full: threading.Event = full, ended: list[str] = ended) -> None:
            try:
                while True:
                    writer.send(np.ones(5000))
                    full.set()
            except OSError as error:
                ended.append(type(error).__name__)

        thread = threading.Thread(target=write)
        thread.start()
        assert full.wait(TIMEOUT)
        reader.close()
        thread.join(TIMEOUT)
        assert ended == ["BrokenPipeError"]
        writer.close()
        assert until(lambda: in_flight() == 0)


def test_an_empty_pipe_is_closed_as_ever() -> None:
    reader, writer = os.pipe()
    assert not unread.close_reader(reader)
    os.close(reader)
    os.close(writer)


def test_the_messages_of_a_socket_are_freed_when_the_writer_closes_after_the_reader(strategy: str) -> None:
    ours, theirs = contexts.default_context.Pipe()
    theirs.send(np.ones(LARGE))
    ours.close()
    theirs.close()
    assert in_flight() == 0


def test_the_messages_of_a_socket_whose_writer_closes_first_need_a_timeout(strategy: str) -> None:
    mp.set_message_timeout(0.5)
    ours, theirs = contexts.default_context.Pipe()
    theirs.send(np.ones(LARGE))
    mp.set_message_timeout(None)
    theirs.close()
    ours.close()
    assert in_flight() == 8 * LARGE
    assert until(lambda: in_flight() == 0)


def test_a_fork_during_the_last_close_leaves_no_end_to_the_child(tmp_path: Path) -> None:
    program = """
        import os, threading
        import numpy as np
        import mp_all as mp

        def pipes(mode):
            found = set()
            for fd in os.listdir("/proc/self/fd"):
                try:
                    link, flags = os.readlink(f"/proc/self/fd/{fd}"), open(f"/proc/self/fdinfo/{fd}").read()
                except OSError:
                    continue  # the folder itself
                if link.startswith("pipe:") and int(flags.split()[3], 8) & os.O_ACCMODE == mode:
                    found.add(link)
            return found

        def close_many(stop):
            while not stop.is_set():
                reader, writer = mp.Pipe(False)
                writer.send(np.ones(5000))
                writer.close()
                reader.close()

        mp.shared.zeros(10)
        before = pipes(os.O_WRONLY)
        stop = threading.Event()
        threads = [threading.Thread(target=close_many, args=(stop,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            pid = os.fork()
            if pid == 0:  # each writing end of these pipes is closed before the reading one
                os._exit(bool(pipes(os.O_WRONLY) - pipes(os.O_RDONLY) - before))
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
    """
    # From 3.12 on a fork beside threads warns.
    assert succeeded(run_script(tmp_path, program, PYTHONWARNINGS="ignore::DeprecationWarning")) == ""


def test_a_feeder_whose_readers_are_gone_frees_all_that_waits_for_it(ctx, strategy: str) -> None:
    queue = ctx.Queue()
    if not hasattr(queue._writer, "_offer_message"):
        pytest.skip("no channels: MP_CHANNEL=0")
    queue._ignore_epipe = True  # as the executor of concurrent.futures sets it
    while queue._writer._offer_message(backend.pickled(bytes, 1 << 10)) is backend.SENT:
        pass
    for _ in range(5):
        queue.put(np.ones(LARGE))
    assert in_flight() == 5 * 8 * LARGE
    queue._reader.close()
    assert until(lambda: in_flight() == 0)
    queue.put(np.ones(LARGE))
    assert until(lambda: in_flight() == 0)
    queue.close()
    queue.join_thread()


UNSENT = """
    import os, sys
    import numpy as np
    import mp_all as mp
    from mp_core.sharing import backend

    LARGE = 1 << 18

    def leave_unsent(queue):
        while queue._writer._offer_message(backend.pickled(bytes, 1 << 10)) is backend.SENT:
            pass
        queue.cancel_join_thread()
        for _ in range(5):
            queue.put(np.ones(LARGE))

    if __name__ == "__main__":
        mp.set_sharing_strategy(sys.argv[2])
        kept = mp.shared.zeros(10)
        ctx = mp.get_context(sys.argv[1])
        queue = ctx.Queue()
        process = ctx.Process(target=leave_unsent, args=(queue,))
        process.start()
        process.join()
        segments = mp.list_segments()
        own = {segment.session for segment in segments if segment.owner == os.getpid()}
        left = sum(segment.in_flight_bytes for segment in segments if segment.session in own)
        print(process.exitcode, left // (8 * LARGE))
"""


def test_a_process_that_ends_without_its_feeder_thread_frees_what_is_unsent(
    start_method: str, strategy: str, tmp_path: Path
) -> None:
    assert succeeded(run_script(tmp_path, UNSENT, start_method, strategy, MP_CHANNEL="1")) == "0 0\n"
