"""iceoryx2: the sender borrows memory that its subscriber maps, fills and publishes it; an event wakes the reader."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.base import Ask, Peer, Starter

LARGEST = 128 << 20
HELLO = None
CONNECT_WITHIN_S = 60


class Iceoryx2(Peer):
    """
    Publish and subscribe of byte slices, one copy into borrowed memory, woken by its events; the answer likewise.

    Its buffers are reused, since the publisher's memory is one pool.
    """

    name = "iceoryx2"
    needs = "iceoryx2"
    distribution = "iceoryx2"

    def open(self) -> None:
        super().open()
        self._made = 0
        self._prefix = prefix(os.getpid())
        self._folder = Path(tempfile.gettempdir(), self._prefix)
        self._folder.mkdir(mode=0o700)

    def connect(self, starter: Starter) -> Ask:
        return self.talk(starter, self.channel(starter, LARGEST, 2), self.channel(starter, 64, 2))

    def queue(self, starter: Starter, nbytes: int, places: int = 8) -> Any:
        return self.channel(starter, nbytes, places)

    def channel(self, starter: Starter, nbytes: int, depth: int) -> Channel:
        self._made += 1
        reader = starter.context.Event(), starter.context.Event()
        return Channel(f"channel-{self._made}", str(self._folder), self._prefix, nbytes, depth, reader)

    def close(self) -> None:
        super().close()
        # One name stays by design: all nodes of a prefix connect through it.
        self.clean_up(os.getpid())

    @classmethod
    def clean_up(cls, pid: int) -> None:
        for left in Path("/dev/shm").glob(f"{prefix(pid)}*"):
            left.unlink()
        shutil.rmtree(Path(tempfile.gettempdir(), prefix(pid)), ignore_errors=True)


def prefix(pid: int) -> str:
    """Return the prefix of every iceoryx2 name of the driver *pid*."""
    return f"bench-iceoryx2-{pid}-"


class Channel:
    """One publisher, one subscriber and an event; each process opens the end that it uses."""

    def __init__(self, name: str, folder: str, prefix: str, nbytes: int, depth: int, reader: tuple[Any, Any]) -> None:
        self.name, self.folder, self.prefix, self.nbytes, self.depth = name, folder, prefix, nbytes, depth
        self.subscribed, self.connected = reader
        self._sender: tuple[Any, Any] | None = None
        self._receiver: tuple[Any, Any] | None = None
        self._opened: tuple[Any, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sender": None, "_receiver": None, "_opened": None}

    def services(self) -> tuple[Any, Any]:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Fatal)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(self.folder)
        config.global_cfg.prefix = iox.FileName.new(self.prefix)
        node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        data = (
            node.service_builder(iox.ServiceName.new(self.name))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(self.depth)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()
        )
        event = node.service_builder(iox.ServiceName.new(self.name)).event().open_or_create()
        self._opened = node, data, event
        return data, event

    def put(self, message: Any) -> None:
        if self._sender is None:
            import iceoryx2 as iox

            data, event = self.services()
            # A message published before a reader has connected to this publisher may be dropped.
            self.wait(self.subscribed)
            publisher = (
                data.publisher_builder()
                .initial_max_slice_len(self.nbytes)
                .backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
                .create()
            )
            self._sender = publisher, event.notifier_builder().create()
            self.publish(HELLO)
            self.wait(self.connected)
        self.publish(message)

    def wait(self, event: Any) -> None:
        if not event.wait(CONNECT_WITHIN_S):
            raise TimeoutError(f"{self.name}: no reader within {CONNECT_WITHIN_S} s")

    def publish(self, message: Any) -> None:
        assert self._sender is not None
        publisher, notifier = self._sender
        array = as_bytes(message)
        sample = publisher.loan_slice_uninit(array.nbytes)
        ctypes.memmove(sample.payload_ptr, array.ctypes.data, array.nbytes)
        sample.assume_init().send()
        notifier.notify()

    def get(self) -> Any:
        if self._receiver is None:
            import iceoryx2 as iox

            data, event = self.services()
            self._receiver = data.subscriber_builder().create(), event.listener_builder().create()
            # An event between the check and the wait can get lost: this limits the delay.
            self._patience = iox.Duration.from_millis(50)
            self.subscribed.set()
            self.receive()  # the hello
            self.connected.set()
        return self.receive()

    def receive(self) -> Any:
        assert self._receiver is not None
        subscriber, listener = self._receiver
        while (sample := subscriber.receive()) is None:
            listener.timed_wait(self._patience)
        return from_bytes(sample)

    def close(self) -> None:
        """Remove every name of this process in `/dev/shm`, without waiting for finalizers."""
        for part in (*(self._sender or ()), *(self._receiver or ())):
            part.delete()
        self._sender = self._receiver = None
        self._opened = None

    def join_thread(self) -> None:
        pass


def as_bytes(message: Any) -> np.ndarray[Any, Any]:
    """Return an array unchanged, a number as the eight bytes of a float, and `None` as one byte."""
    if isinstance(message, np.ndarray):
        return message
    return np.zeros(1, np.uint8) if message is None else np.array([message], np.float64).view(np.uint8)


def from_bytes(sample: Any) -> Any:
    """Reverse `as_bytes`; an array uses the memory of *sample*, and keeps it."""
    payload = sample.payload()
    if payload.number_of_elements == 1:
        return None
    memory = (ctypes.c_uint8 * payload.number_of_elements).from_address(payload.data_ptr)
    memory._sample = sample
    return from_buffer(memory)


def from_buffer(memory: Any) -> Any:
    """Reverse `as_bytes` for the bytes of a message; an array uses them."""
    array = np.frombuffer(memory, np.uint8)
    if array.nbytes == 1:
        return None
    return float(array.view(np.float64)[0]) if array.nbytes == 8 else array
