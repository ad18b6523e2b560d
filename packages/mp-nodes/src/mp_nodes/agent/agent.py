"""The agent: one on each node, which runs the node's ranks and tells the driver how they end."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from typing import Any

from mp_core.timeline.remote import NodeTimeline
from mp_nodes.agent.node_payload import NodePayload
from mp_nodes.agent.node_supervisor import Commands, NodeJob, NodeSupervisor, Relay
from mp_nodes.protocol import (
    BEAT,
    DRIVER_LOST_AFTER,
    LOST_WHILE_STARTING,
    Ack,
    Beat,
    End,
    Hello,
    Leave,
    Lost,
    Mail,
    Ping,
    Pong,
    Recorded,
    Refused,
    Show,
    Signal,
    Start,
    Started,
    versions,
)
from mp_spawn.jobs.zygote import ZygoteLauncher


class Outbox:
    """The messages that wait for the engine to carry them to the driver."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._changed = threading.Condition()
        self.closed = False

    def put(self, message: Any) -> None:
        """Add a message; without effect after `close`."""
        with self._changed:
            if not self.closed:
                self._messages.append(message)
                self._changed.notify_all()

    def take(self, timeout: float) -> list[Any]:
        """Return the messages, after waiting up to *timeout* seconds for the first one."""
        with self._changed:
            if not self._messages and not self.closed:
                self._changed.wait(timeout)
            taken = list(self._messages)
            self._messages.clear()
            return taken

    def close(self) -> None:
        """Take no more messages. Idempotent."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Agent:
    """
    Handles the messages of a driver. The engine calls `receive`, and carries what is in `outbox`.

    Its heartbeat thread ends the ranks when the driver is lost, see Note [Heartbeat].
    """

    def __init__(self, address: str = "", guardian: str = "") -> None:
        # The process that started this one, if this one is not to outlive it: its name, for the driver.
        self._guardian = guardian
        self._parent = os.getppid()
        # The driver is told, and logs for all nodes.
        logging.getLogger("mp_spawn").disabled = True
        self.outbox = Outbox()
        self.code: int | None = None
        #: Why the agent has left without being told to, if its heartbeat thread knows.
        self.lost = ""
        self._heard = time.monotonic()
        self._limit = LOST_WHILE_STARTING
        # Whether the thread that listens to the driver is reserving memory, which can take seconds.
        self._busy = False
        self._commands = Commands()
        self._job: NodeJob | None = None
        self._relay: Relay | None = None
        self._abandoned = threading.Event()
        self.outbox.put(Hello(socket.gethostname(), address, _free_port(), versions()))
        threading.Thread(target=self._beat, name="mp-spawn heartbeat", daemon=True).start()

    def hear(self) -> None:
        """Note a sign of life of the driver."""
        self._heard = time.monotonic()

    def receive(self, message: Any) -> None:
        self.hear()
        match message:
            case Ping(at):
                self.outbox.put(Pong(at, time.monotonic()))
            case Signal() | End() | Show():
                self._commands.push(message)
            case Ack(nbytes) if self._relay is not None:
                self._relay.acknowledge(nbytes)
            case Mail(rank, data) if self._job is not None:
                self._job.send(rank, data)
            case Leave(code):
                self.code = code
                self.abandon()

    def prepare(self, start: Start) -> NodePayload:
        """Make the memory for the bytes that follow *start*."""
        self._busy = True
        if self._job is not None:
            self._commands = Commands()  # the ranks of an earlier start have ended
        try:
            return NodePayload(start.shipment)
        finally:
            self.hear()
            self._busy = False

    def begin(self, start: Start, payload: NodePayload) -> None:
        """Start the ranks, once the bytes are in place; returns at once."""
        self.hear()
        args = start, payload, self._commands
        threading.Thread(target=self._run, args=args, name="mp-spawn ranks", daemon=True).start()

    def refuse(self, error: BaseException) -> None:
        """Tell the driver that the ranks cannot be started."""
        self.outbox.put(Refused(f"{type(error).__name__}: {error}"))

    def abandon(self) -> None:
        """Kill the ranks at once; idempotent, and safe from any thread."""
        self._abandoned.set()
        self.outbox.close()
        if self._relay is not None:
            self._relay.acknowledge(1 << 62)
        self._commands.push(End(-1.0, False))
        if self._job is not None:
            self._job.death_pipe.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the agent has been abandoned or told to leave."""
        return self._abandoned.wait(timeout)

    def _run(self, start: Start, payload: NodePayload, commands: Commands) -> None:
        timeline = NodeTimeline(start.events, f"agent of {start.node.name}")
        try:
            self._relay = Relay(self.outbox.put, start.node.ranks.start)
            self._job = NodeJob.of(start, payload, ZygoteLauncher(), self._relay)
            if self._abandoned.is_set():
                return
            supervisor = NodeSupervisor.start(self._job, commands)
            supervisor.tell = self.outbox.put
            self.outbox.put(Started([rank.pid for rank in supervisor.ranks]))
            payload.post_office.begin(start.node.ranks.start, self.outbox.put)
            self.hear()
            self._limit = DRIVER_LOST_AFTER
            if self._abandoned.is_set():
                self._job.death_pipe.close()  # it came while the ranks were being started
            ended = supervisor.run()
            for name, data in timeline.files():
                self.outbox.put(Recorded(name, data))
            self.outbox.put(ended)
        except Exception as error:
            self.refuse(error)
        finally:
            timeline.close()
            payload.close()
            commands.close()

    def _beat(self) -> None:
        before = time.monotonic()
        while not self._abandoned.wait(self._to_wait()):
            now = time.monotonic()
            if self._busy:
                self.hear()
            elif now - before > 2 * BEAT:
                self._heard = max(self._heard, now - DRIVER_LOST_AFTER / 2)  # this process was stopped itself
            elif now - self._heard > self._limit:
                self._leave(f"it heard nothing from the driver for {self._limit:g} s")
                return
            elif self._guardian and os.getppid() != self._parent:
                self._leave(f"{self._guardian} has died")
                return
            before = now
            self.outbox.put(Beat())

    def _leave(self, reason: str) -> None:
        self.lost = reason
        self.outbox.put(Lost(reason))
        self.abandon()

    def _to_wait(self) -> float:
        """Return the seconds until the next heartbeat, or until the driver is lost."""
        return min(BEAT, max(BEAT / 10, self._heard + self._limit - time.monotonic()))


def _free_port() -> int:
    """Return a TCP port that no process of this machine uses."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port
