"""A process that is killed before its message is in a channel takes the memory of the message with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import pytest
from support.sessions import in_flight_bytes
from support.waiting import until

import mp_all as mp

PATIENCE = 20
NBYTES = 200_000


class Deadly:
    """Kills the process that pickles it."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")


class Described:
    """Plain, but pickled by Python."""

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays = arrays

    def __reduce__(self) -> Any:
        return Described, (self.arrays,)


def arrays(count: int) -> list[Any]:
    return [np.full(NBYTES // 8, i, dtype=float) for i in range(count)]


CONTENTS: dict[str, Callable[[], Any]] = {
    "an array": lambda: arrays(1)[0],
    "many arrays": lambda: arrays(100),
    "an object": lambda: Described(arrays(3)),
    "a shared array twice": lambda: [mp.shared.ones(NBYTES)] * 2,
}


def put_for_ever(queue: Any, content: str) -> None:
    while True:
        queue.put((CONTENTS[content](), b"x" * 40_000))


def send_and_die(connection: Any, content: str) -> None:
    connection.send((CONTENTS[content](), Deadly()))


def put_and_die(queue: Any, content: str) -> None:
    queue.put((CONTENTS[content](), Deadly()))


def returned(content: str) -> Any:
    return CONTENTS[content](), Deadly()


@pytest.fixture(params=CONTENTS)
def content(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_a_writer_that_is_killed_while_it_waits_for_room(ctx: BaseContext, kind: str, content: str) -> None:
    own = mp.shared.ones(1)  # so that the others are in its session
    queue: Any = getattr(ctx, kind)(*[8] * (kind == "Queue"))
    process = ctx.Process(target=put_for_ever, args=(queue, content))
    process.start()
    message = queue.get()
    # It waits when nothing more comes into flight; if it does not wait yet, the property still holds.
    last = -1
    while last != (last := in_flight_bytes()):
        process.join(0.2)
    process.kill()
    process.join()
    while not queue.empty():
        message = queue.get()
    assert len(message[1]) == 40_000
    del message
    assert until(lambda: in_flight_bytes() == 0, PATIENCE), (own, in_flight_bytes())
    queue.close()


@pytest.mark.parametrize("way", [send_and_die, put_and_die], ids=["send", "put"])
def test_a_writer_that_is_killed_while_it_pickles(ctx: BaseContext, way: Callable[..., None], content: str) -> None:
    own = mp.shared.ones(1)
    if way is put_and_die:
        receiver: Any = ctx.SimpleQueue()
        sender = receiver
    else:
        receiver, sender = ctx.Pipe(duplex=False)
    process = ctx.Process(target=way, args=(sender, content))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert until(lambda: in_flight_bytes() == 0, PATIENCE), (own, in_flight_bytes())
    receiver.close()
    sender.close()


def test_a_worker_that_is_killed_while_it_pickles_its_result(ctx: BaseContext, content: str) -> None:
    own = mp.shared.ones(1)
    with mp.get_context(ctx.get_start_method()).Pool(1) as pool:
        with pytest.raises(mp.WorkerLostError):
            pool.apply(returned, (content,))
        assert pool.apply(abs, (-3,)) == 3
        assert until(lambda: in_flight_bytes() == 0, PATIENCE), (own, in_flight_bytes())
