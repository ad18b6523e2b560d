"""Agents at the other end of a connection of multiprocessing, as local and environment have them: both ends.

A message is a pickle in a frame of its own. The bytes that belong to a `Start` follow without frames; the agent reads
them into their final place. Each piece of them is a sign of life.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mp_spawn.engines.agent import Agent
from mp_spawn.engines.protocol import Leave, Lost, Node, Signalled, Start

__all__ = ["ConnectedAgents", "serve"]

CHUNK = 1 << 20
# Seconds for the agents to leave once the job is over.
TO_LEAVE = 2.0


class ConnectedAgents:
    """The driver's side: a thread for each direction of each connection, so that no node delays another."""

    def __init__(self, connections: Sequence[Any], nodes: list[Node]) -> None:
        self.nodes = nodes
        self._connections = list(connections)
        self._came: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self._to_write: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in connections]
        self._dropped: list[Any] = []
        self._threads: list[threading.Thread] = []
        for index in range(len(connections)):
            self._begin(index)

    def _begin(self, index: int) -> None:
        args = index, self._connections[index], self._to_write[index]
        for target in (self._read, self._write):
            thread = threading.Thread(target=target, args=args, name="mp-spawn connection", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _put_in_place(self, index: int, connection: Any, node: Node) -> None:
        """
        Have a new agent in the place of one that was dropped.
        """
        self._connections[index], self._to_write[index], self.nodes[index] = connection, queue.SimpleQueue(), node
        self._begin(index)

    def start(self, starts: Mapping[int, Start], parts: list[memoryview]) -> None:
        """Queue the jobs, and after each the same *parts*, of which no copy is made here."""
        for node, start in starts.items():
            self.send(node, start)
            for part in parts:
                self._to_write[node].put(part)

    def send(self, node: int, message: Any) -> None:
        """Queue a message."""
        self._to_write[node].put(pickle.dumps(message))

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        """Return what has come."""
        came = []
        with contextlib.suppress(queue.Empty):
            came.append(self._came.get(timeout=timeout))
            while True:
                came.append(self._came.get_nowait())
        # The end of a dropped connection must not be taken for that of the agent in its place.
        return [(index, message) for index, connection, message in came if connection not in self._dropped]

    def drop(self, node: int) -> None:
        """Shut the connection down, which ends the agent if it can hear."""
        self._dropped.append(self._connections[node])
        self._to_write[node].put(None)
        _shut_down(self._connections[node])

    def close(self, code: int) -> None:
        """Tell the agents to leave, and close the connections."""
        for node in range(len(self._connections)):
            self.send(node, Leave(code))
            self._to_write[node].put(None)
        deadline = time.monotonic() + TO_LEAVE
        for thread in self._threads:  # the readers end when the agents have left
            thread.join(max(0.0, deadline - time.monotonic()))
        for connection in self._connections:
            _shut_down(connection)
        for thread in self._threads:
            thread.join(TO_LEAVE)
        for connection in {*self._connections, *self._dropped}:
            connection.close()

    def _read(self, index: int, connection: Any, to_write: Any) -> None:
        try:
            while True:
                self._take(index, connection, pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError) as error:
            self._take(index, connection, Lost(f"its agent has closed the connection ({type(error).__name__})"))
        except Exception as error:
            self._take(index, connection, Lost(f"its agent sent what cannot be read: {error!r}"))

    def _take(self, index: int, connection: Any, message: Any) -> None:
        self._came.put((index, connection, message))

    def _write(self, index: int, connection: Any, to_write: queue.SimpleQueue[Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader reports it
            while (frame := to_write.get()) is not None:
                if isinstance(frame, bytes):
                    connection.send_bytes(frame)
                else:
                    _write_all(connection.fileno(), frame)


def _shut_down(connection: Any) -> None:
    """
    Wake the threads that use the connection.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def serve(connection: Any, signals: queue.SimpleQueue[int] | None = None) -> int:
    """
    Be the agent at this end of *connection* until the driver ends the job or is lost; return the exit code.

    The driver is told of *signals* to this process.
    """
    agent = Agent()
    threading.Thread(target=_send_all, args=(agent, connection), name="mp-spawn connection", daemon=True).start()
    threading.Thread(target=_receive_all, args=(agent, connection), name="mp-spawn connection", daemon=True).start()
    while not agent.wait(0.2 if signals is not None else None):
        while signals is not None and not signals.empty():
            agent.outbox.put(Signalled(signals.get()))
    return 1 if agent.code is None else agent.code


def _send_all(agent: Agent, connection: Any) -> None:
    with contextlib.suppress(OSError):
        while not agent.outbox.closed:
            for message in agent.outbox.take(60.0):
                connection.send_bytes(pickle.dumps(message))


def _receive_all(agent: Agent, connection: Any) -> None:
    try:
        while True:
            message = pickle.loads(connection.recv_bytes())
            if isinstance(message, Start):
                _start(agent, message, connection)
            else:
                agent.receive(message)
    except (EOFError, OSError):
        agent.abandon()


def _start(agent: Agent, start: Start, connection: Any) -> None:
    try:
        payload = agent.prepare(start)
    except Exception as error:
        agent.refuse(error)
        unwanted = memoryview(bytearray(CHUNK))
        left = sum(nbytes for nbytes, _ in start.shipment.buffers) + sum(start.shipment.blocks)
        while left > 0:
            left -= _read_some(connection.fileno(), unwanted[:left])
        return
    for part in payload.parts:
        offset = 0
        while offset < part.nbytes:
            offset += _read_some(connection.fileno(), part[offset : offset + CHUNK])
            agent.hear()
    agent.begin(start, payload)


def _read_some(fd: int, place: memoryview) -> int:
    """
    Read into *place*, as much as has come; return the number of bytes.
    """
    size = os.readv(fd, [place])
    if size == 0:
        raise EOFError
    return size


def _write_all(fd: int, part: memoryview) -> None:
    offset = 0
    while offset < part.nbytes:
        offset += os.write(fd, part[offset : offset + CHUNK])
