"""A program of three processes that share arrays; a test kills some of them and commands the others.

    python session.py SOCKET SOCKET SOCKET

Each of parent, producer and consumer listens to its own socket: "work" shares something and needs a
manager for it, "end" ends the process.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import numpy as np

import mp_all as mp

N = 500_000  # float64: 4 MB


def check(array: np.ndarray, value: float) -> None:
    assert array.shape == (N,) and (array == value).all(), array


def send_one(writer: Any, held: np.ndarray) -> None:
    writer.send(held + 1)


def work(held: np.ndarray) -> None:
    reader, writer = mp.Pipe(False)
    process = mp.Process(target=send_one, args=(writer, held))
    process.start()
    check(reader.recv(), held[0] + 1)
    process.join()
    assert process.exitcode == 0
    reader.close()
    writer.close()
    process.close()


def obey(sock: socket.socket, held: np.ndarray) -> None:
    sock.sendall(b"%d\n" % os.getpid())
    with sock.makefile() as commands:
        for command in commands:
            if command.strip() == "end":
                return
            work(held)
            sock.sendall(b"worked\n")


def produce(sock: socket.socket, queue: Any, given: np.ndarray) -> None:
    check(given, 7)
    own = mp.shared.full(N, 3.0)
    for value in range(3):
        queue.put(np.full(N, float(value)))
    queue.put(own)
    obey(sock, own)


def consume(sock: socket.socket, queue: Any, given: np.ndarray) -> None:
    check(given, 7)
    held = queue.get()
    check(held, 0)
    obey(sock, held)


def main(numbers: list[int]) -> None:
    mp.set_start_method("fork")
    for_parent, for_producer, for_consumer = (socket.socket(fileno=n) for n in numbers)
    queue = mp.SimpleQueue()
    given = mp.shared.full(N, 7.0)
    children = [
        mp.Process(target=produce, args=(for_producer, queue, given)),
        mp.Process(target=consume, args=(for_consumer, queue, given)),
    ]
    for child in children:
        child.start()
    obey(for_parent, given)
    for child in children:
        child.join()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
