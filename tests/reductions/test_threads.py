"""Many threads send, receive and drop the same memory at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import numpy as np
from support import tasks
from support.carriers import KINDS, TIMEOUT

import mp_all as mp


def all_at_once(bodies: list[Callable[[], None]]) -> None:
    """
    Run each body in a thread of its own, all from the same moment on; the first exception is raised.
    """
    start = threading.Barrier(len(bodies))
    errors: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            start.wait(TIMEOUT)
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_threads_may_receive_and_drop_one_block_at_once(strategy: str) -> None:
    array = mp.shared.array(np.arange(1000))

    def body(seed: int) -> None:
        chance = random.Random(seed)
        held = []
        for _ in range(200):
            back = ForkingPickler.loads(ForkingPickler.dumps(array[chance.randrange(900) :]))
            assert np.shares_memory(back, array)
            assert back[-1] == 999
            held.append(back)
            if len(held) > chance.randrange(5):
                held.clear()

    all_at_once([lambda seed=seed: body(seed) for seed in range(4)])


def test_a_block_may_die_in_one_thread_while_another_receives_it(strategy: str) -> None:
    messages = []
    for number in range(100):
        array = mp.shared.full(100, number)
        messages.append([bytes(ForkingPickler.dumps(array)) for _ in range(3)])
        del array
    outcomes: list[int] = []

    def body(which: int) -> None:
        for number, copies in enumerate(messages):
            try:
                back = ForkingPickler.loads(copies[which])
            except (mp.ReceiveError, ValueError):
                outcomes.append(number)
                continue
            assert (back == number).all()
            del back

    all_at_once([lambda which=which: body(which) for which in range(3)])
    # Each message has a reference of its own: dropping the first block frees nothing of the others.
    assert outcomes == []


def test_threads_may_send_private_arrays_at_once(strategy: str) -> None:
    def body(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(50):
            array = generator.integers(0, 255, generator.integers(1, 200_000), "u1")
            back = ForkingPickler.loads(ForkingPickler.dumps(array))
            assert np.array_equal(back, array)

    all_at_once([lambda seed=seed: body(seed) for seed in range(4)])


def test_threads_may_use_one_carrier_each(ctx, strategy: str) -> None:
    array = mp.shared.zeros(4)
    carriers = [KINDS[kind](ctx) for kind in ("pipe", "queue", "simple_queue", "pool")]

    def body(number: int) -> None:
        for value in range(1, 51):
            carriers[number].call(tasks.fill, array[number : number + 1], value)
            assert array[number] == value
            assert (carriers[number].call(tasks.echo, np.full(10_000, value)) == value).all()

    all_at_once([lambda number=number: body(number) for number in range(4)])
    assert array.tolist() == [50] * 4
    for carrier in carriers:
        carrier.close()
