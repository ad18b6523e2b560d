"""Agents at the other end of a `Wire`, as local and environment have them: both ends.

A message is a pickle. The bytes that belong to a `Start` follow as parts, which the agent reads into their final place.
Each record of them is a sign of life.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mp_nodes.agent.agent import Agent
from mp_nodes.protocol import Leave, Lost, Node, Signalled, Start
from mp_nodes.transport.wire import CHUNK, TamperedError, Wire
from mp_spawn.output.messages import tell

# Seconds for the agents to leave once the job is over.
TO_LEAVE = 2.0
# Seconds for an agent's last words.
TO_SAY = 1.0


class ConnectedAgents:
    """The driver's side: a thread for each direction of each connection, so that no node delays another."""

    def __init__(self, wires: Sequence[Wire], nodes: list[Node]) -> None:
        self.nodes = nodes
        self._wires = list(wires)
        self._came: queue.SimpleQueue[tuple[int, Wire, Any]] = queue.SimpleQueue()
        self._to_write: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in wires]
        self._dropped: list[Wire] = []
        self._threads: list[threading.Thread] = []
        for index in range(len(wires)):
            self._begin(index)

    def _begin(self, index: int) -> None:
        args = index, self._wires[index], self._to_write[index]
        for target in (self._read, self._write):
            thread = threading.Thread(target=target, args=args, name="mp-spawn connection", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _put_in_place(self, index: int, wire: Wire, node: Node) -> None:
        """Have a new agent in the place of one that was dropped."""
        self._wires[index], self._to_write[index], self.nodes[index] = wire, queue.SimpleQueue(), node
        self._begin(index)

    def start(self, starts: Mapping[int, Start], parts: list[memoryview]) -> None:
        """Queue the jobs, and after each the same *parts*, of which no copy is made here."""
        for node, start in starts.items():
            # As one, since another thread sends heartbeats meanwhile: none may come between the parts.
            self._to_write[node].put([pickle.dumps(start), *parts])

    def send(self, node: int, message: Any) -> None:
        self._to_write[node].put([pickle.dumps(message)])

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        came = []
        with contextlib.suppress(queue.Empty):
            came.append(self._came.get(timeout=timeout))
            while True:
                came.append(self._came.get_nowait())
        # The end of a dropped connection must not be taken for that of the agent in its place.
        return [(index, message) for index, wire, message in came if wire not in self._dropped]

    def drop(self, node: int) -> None:
        """Shut the connection down, which ends the agent if it can hear."""
        self._dropped.append(self._wires[node])
        self._to_write[node].put(None)
        self._wires[node].shut_down()

    def close(self, code: int) -> None:
        """Tell the agents to leave, and close the connections."""
        for node in range(len(self._wires)):
            self.send(node, Leave(code))
            self._to_write[node].put(None)
        deadline = time.monotonic() + TO_LEAVE
        for thread in self._threads:  # the readers end when the agents have left
            thread.join(max(0.0, deadline - time.monotonic()))
        for wire in self._wires:
            wire.shut_down()
        for thread in self._threads:
            thread.join(TO_LEAVE)
        for wire in {*self._wires, *self._dropped}:
            wire.close()

    def _read(self, index: int, wire: Wire, to_write: Any) -> None:
        try:
            while True:
                self._take(index, wire, pickle.loads(wire.receive()))
        except TamperedError as error:
            to_write.put([pickle.dumps(Lost(str(error)))])  # so that the other end also says it
            self._take(index, wire, Lost(str(error)))
        except (EOFError, OSError) as error:
            self._take(index, wire, Lost(f"its agent has closed the connection ({type(error).__name__})"))
        except Exception as error:
            self._take(index, wire, Lost(f"its agent sent what cannot be read: {error!r}"))

    def _take(self, index: int, wire: Wire, message: Any) -> None:
        self._came.put((index, wire, message))

    def _write(self, index: int, wire: Wire, to_write: queue.SimpleQueue[Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader reports it
            while (frames := to_write.get()) is not None:
                for frame in frames:
                    if isinstance(frame, bytes):
                        wire.send(frame)
                    else:
                        wire.send_part(frame)


def serve(wire: Wire, signals: queue.SimpleQueue[int] | None = None) -> int:
    """
    Run the agent on the connection *wire* until the driver ends the job or is lost; return the exit code.

    The driver is told of *signals* to this process.
    """
    agent = Agent()
    sender = threading.Thread(target=_send_all, args=(agent, wire), name="mp-spawn connection", daemon=True)
    sender.start()
    args = agent, wire, signals is not None
    threading.Thread(target=_receive_all, args=args, name="mp-spawn connection", daemon=True).start()
    while not agent.wait(0.2 if signals is not None else None):
        while signals is not None and not signals.empty():
            agent.outbox.put(Signalled(signals.get()))
    if signals is not None and agent.lost:
        tell(f"mp-spawn: this node has ended its ranks: {agent.lost}")
    if agent.code is None:
        sender.join(TO_SAY)  # why: the driver also reports it
        return 1
    return agent.code


def _send_all(agent: Agent, wire: Wire) -> None:
    with contextlib.suppress(OSError):
        closed = False
        while not closed:
            closed = agent.outbox.closed
            for message in agent.outbox.take(60.0):
                wire.send(pickle.dumps(message))


def _receive_all(agent: Agent, wire: Wire, says_why: bool) -> None:
    try:
        while True:
            message = pickle.loads(wire.receive())
            if isinstance(message, Start):
                _start(agent, message, wire)
            elif isinstance(message, Lost):
                tell(f"mp-spawn: node 0 does not believe this node: {message.reason}")
            else:
                agent.receive(message)
    except TamperedError as error:
        tell(f"mp-spawn: node 0 is no longer believed: {error}")
        agent.outbox.put(Lost(f"it no longer believes this one: {error}"))
        agent.abandon()
    except (EOFError, OSError):
        if says_why and agent.code is None and not agent.lost:
            tell("mp-spawn: node 0 has closed the connection before the end of the job")
        agent.abandon()


def _start(agent: Agent, start: Start, wire: Wire) -> None:
    try:
        payload = agent.prepare(start)
    except Exception as error:
        agent.refuse(error)
        unwanted = memoryview(bytearray(CHUNK))
        for size in [*(nbytes for nbytes, _ in start.shipment.buffers), *start.shipment.blocks]:
            offset = 0
            while offset < size:
                offset += wire.receive_into(unwanted[: size - offset])
        return
    for part in payload.parts:
        offset = 0
        while offset < part.nbytes:
            offset += wire.receive_into(part[offset:])
            agent.hear()
    agent.begin(start, payload)
