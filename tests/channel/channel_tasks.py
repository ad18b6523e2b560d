"""Functions that the children of the tests of channels run."""

from __future__ import annotations

import contextlib
import os
import signal
from queue import Full
from typing import Any

import numpy as np


def echo(connection: Any) -> None:
    """
    Answer each message with itself, until None.
    """
    while (message := connection.recv()) is not None:
        connection.send(message)


def echo_queue(requests: Any, answers: Any) -> None:
    """
    Like `echo`, from one queue to another.
    """
    while (message := requests.get()) is not None:
        answers.put(message)


def send_all(connection: Any, messages: Any) -> None:
    for message in messages:
        connection.send_bytes(message)


def hand_over(to: Any, connection: Any) -> None:
    """
    Send a connection through another one, and wait for the answer.
    """
    to.send(connection)
    to.recv()


def receive_connection(from_: Any) -> None:
    """
    Receive a connection, and answer on it.
    """
    connection = from_.recv()
    connection.send(("through", connection.recv()))
    connection.close()
    from_.send("done")


def put_numbers(queue: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        queue.put(number)


def get_until_none(queue: Any, results: Any) -> None:
    """
    Report all messages of a queue up to the first None.
    """
    got = []
    while (message := queue.get()) is not None:
        got.append(message)
    results.put((os.getpid(), got))


def put_for_ever(queue: Any, number: int, sizes: list[int]) -> None:
    """
    Put (number, count, as many bytes as the sizes in turn say).
    """
    count = 0
    while True:
        queue.put((number, count, payload(count, sizes)))
        count += 1


def payload(count: int, sizes: list[int]) -> list[bytes]:
    return pieces(count % 251, sizes[count % len(sizes)])


def pieces(value: int, nbytes: int) -> list[bytes]:
    """Return bytes that travel in the message itself, of any length; one bytes object would go through a block."""
    return [bytes([value]) * min(PIECE, nbytes - at) for at in range(0, nbytes, PIECE)]


PIECE = 10_000


def drain_for_ever(queue: Any) -> None:
    while True:
        queue.get()


def get_for_ever(queue: Any, seen: Any, ready: Any) -> None:
    ready.set()
    while True:
        queue.get()
        seen[0] += 1


def mark_until_none(queue: Any, sizes: list[int], marks: Any) -> None:
    """
    Count in `marks` how often each message of `put_for_ever` came; -1 at [0, 0] for one with wrong bytes.
    """
    while (message := queue.get()) is not None:
        number, count, data = message
        if data != payload(count, sizes):
            marks[0, 0] = -1
        if count < marks.shape[1]:
            marks[number, count] += 1


def block_in_get(queue: Any, ready: Any) -> None:
    ready.set()
    queue.get()


def work(queue: Any, ready: Any) -> None:
    """
    Finish each task of a joinable queue, until None.
    """
    ready.set()
    while queue.get() is not None:
        queue.task_done()
    queue.task_done()


def count_for_ever(queue: Any) -> None:
    """
    Put a task, receive one and finish it, again and again.
    """
    while True:
        queue.put(1)
        queue.get()
        queue.task_done()


def kill_self_after_put(queue: Any) -> None:
    queue.put("last words")
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_end(connection: Any, answer: Any) -> None:
    """
    Report how a receive ends.
    """
    try:
        connection.recv()
    except EOFError:
        answer.send("EOFError")


def send_on_each_other_one(ends: list[Any]) -> None:
    """
    Send the number of each pipe on its second end.
    """
    for number, writer in enumerate(ends[1::2]):
        writer.send(number)


class Dies:
    """
    Ends the process that unpickles it.
    """

    EXITCODE = 17

    def __reduce__(self) -> Any:
        return os._exit, (self.EXITCODE,)


def try_locks(queue: Any, answer: Any) -> None:
    """Wait for a message, and answer which locks of the queue are free."""
    queue.get()
    answer.put((queue._rlock.acquire(block=False), queue._wlock.acquire(block=False)))


def answer_on(connection: Any) -> None:
    """
    Answer one message with itself and its process.
    """
    connection.send((connection.recv(), os.getpid()))


def of_kind(kind: str, number: int) -> Any:
    """
    Return an object that travels in a record, in a larger one, in several, or in a block.
    """
    if kind == "number":
        return number
    if kind == "bytes":
        return bytes(number % 30_000)
    if kind == "parts":
        return [number] * 30_000
    return np.full(16_000 + number % 8 * 16_000, number, dtype=np.float64)


def put_kind(queue: Any, kind: str) -> None:
    """
    Put objects of one kind for ever.
    """
    number = 0
    while True:
        queue.put(of_kind(kind, number * 977))
        number += 1


def put_many(queue: Any, count: int, obj: Any, ready: Any) -> None:
    """
    Put an object again and again, say so, and wait for the end.
    """
    for _ in range(count):
        queue.put(obj)
    ready.put("ready")
    while True:
        signal.pause()


def put_until_full(queue: Any, kind: str, put: Any) -> None:
    """
    Put objects until the queue is full, and tell how many.
    """
    count = 0
    with contextlib.suppress(Full):
        while True:
            queue.put(of_kind(kind, 29_000), timeout=0.2)
            count += 1
    put.put(count)


def put_one_and_tell(queue: Any, done: Any) -> None:
    done.put("waits")
    queue.put(1)
    done.put("has put")


def finish(queue: Any, count: int) -> None:
    """
    Do so many tasks.
    """
    for _ in range(count):
        queue.get()
        queue.task_done()


def get_all(queue: Any) -> None:
    """
    Receive for ever.
    """
    while True:
        queue.get()
