"""iceoryx2: the sender borrows memory that its subscriber maps, fills and publishes it; an event wakes the reader."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import Ask, Peer

if TYPE_CHECKING:
    from benchmarks.driver import Stage

LARGEST = 128 << 20
DEPTH = 8


class Iceoryx2(Peer):
    """
    Publish and subscribe of byte slices, one copy into borrowed memory, woken by its events; the answer likewise.

    Its buffers stay warm, since the publisher's memory is one pool that is used in turn.
    """

    name = "iceoryx2"
    needs = "iceoryx2"
    distribution = "iceoryx2"

    def open(self) -> None:
        super().open()
        self._made = 0
        self._prefix = f"bench-iceoryx2-{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory(prefix="iceoryx2-")

    def connect(self, stage: Stage) -> Ask:
        return self.talk(stage, self.channel(LARGEST, 2), self.channel(64, 2))

    def queue(self, stage: Stage, nbytes: int) -> Any:
        return self.channel(nbytes, DEPTH)

    def channel(self, nbytes: int, depth: int) -> Channel:
        self._made += 1
        return Channel(f"channel-{self._made}", self._folder.name, self._prefix, nbytes, depth)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()
        # One name stays by design, the one that all nodes of a prefix meet by; more if a process was killed.
        for left in Path("/dev/shm").glob(f"{self._prefix}*"):
            left.unlink()


class Channel:
    """One publisher and one subscriber with an event beside them; each end is opened by the process that uses it."""

    def __init__(self, name: str, folder: str, prefix: str, nbytes: int, depth: int) -> None:
        self.name, self.folder, self.prefix, self.nbytes, self.depth = name, folder, prefix, nbytes, depth
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
            publisher = (
                data.publisher_builder()
                .initial_max_slice_len(self.nbytes)
                .backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered)
                .create()
            )
            # What is published before there is a subscriber reaches nobody.
            deadline = time.monotonic() + 60
            while data.dynamic_config.number_of_subscribers == 0:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.name}: no subscriber within 60 s")
                time.sleep(0.001)
            self._sender = publisher, event.notifier_builder().create()
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
            self._second = iox.Duration.from_secs(1)
        subscriber, listener = self._receiver
        while (sample := subscriber.receive()) is None:
            listener.timed_wait(self._second)
        return from_bytes(sample)

    def close(self) -> None:
        """Take back every name of this process in `/dev/shm`; that waits for no finalizer."""
        for part in (*(self._sender or ()), *(self._receiver or ())):
            part.delete()
        self._sender = self._receiver = None
        self._opened = None

    def join_thread(self) -> None:
        pass


def as_bytes(message: Any) -> np.ndarray[Any, Any]:
    """An array of bytes as it is; a number as the eight bytes of a float, `None` as one byte."""
    if isinstance(message, np.ndarray):
        return message
    return np.zeros(1, np.uint8) if message is None else np.array([message], np.float64).view(np.uint8)


def from_bytes(sample: Any) -> Any:
    """The other way round; an array is the memory of *sample* itself, and keeps it."""
    payload = sample.payload()
    if payload.number_of_elements == 1:
        return None
    memory = (ctypes.c_uint8 * payload.number_of_elements).from_address(payload.data_ptr)
    memory._sample = sample
    array = np.frombuffer(memory, np.uint8)
    return float(array.view(np.float64)[0]) if array.nbytes == 8 else array
