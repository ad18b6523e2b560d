"""The output of ranks of other machines, at the driver: as it is, after `[node:rank]`, captured, or in files."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from mp_nodes.protocol import Node, Printed
from mp_spawn.output.destinations import LOST, STREAMS, Capture, Files, Piped, Prefix, has_written, logger
from mp_spawn.output.streams import Streams


class _Labelled(Prefix):
    """Each line with its node and rank in front."""

    def __init__(self, labels: dict[int, str]) -> None:
        super().__init__()
        self.labels = labels

    def prefix(self, rank: int) -> str:
        return f"[{self.labels[rank]}] "


class _Plain(Prefix):
    """Each line as it is."""

    def prefix(self, rank: int) -> str:
        return ""


class _Folder(Capture):
    """A folder with ``rank-0.out``, ``rank-0.err``, …, on the machine of the driver."""

    def __init__(self, folder: str | os.PathLike[str], ends: Iterable[tuple[int, str]]) -> None:
        super().__init__()
        self._files = Files(folder)
        for end in ends:
            os.close(self._files.open(*end, 0))

    def take(self, rank: int, stream: str, data: bytes) -> None:
        self._files.append(rank, stream, data)

    def add(self, rank: int, text: str) -> None:
        self._files.add(rank, text)


class _Selected(_Labelled):
    """Each stream in a file, written with its node and rank in front, both, or neither."""

    def __init__(self, streams: Streams, nodes: list[Node]) -> None:
        super().__init__(_labels(nodes))
        self._streams = streams
        self._local = {rank: rank - node.ranks.start for node in nodes for rank in node.ranks}
        ends = [(rank, stream) for rank in self._local for stream in STREAMS if self._goes_to_file(rank, stream)]
        self._folder = _Folder(streams.folder, ends) if ends else None

    def _goes_to_file(self, rank: int, stream: str) -> bool:
        return self._streams.goes_to_file(self._local[rank], stream)

    def take(self, rank: int, stream: str, data: bytes) -> None:
        if self._folder is not None and self._goes_to_file(rank, stream):
            self._folder.take(rank, stream, data)
        if self._streams.are_shown(self._local[rank], stream):
            super().take(rank, stream, data)

    def closed(self, rank: int, stream: str) -> None:
        if self._streams.are_shown(self._local[rank], stream):
            super().closed(rank, stream)

    def add(self, rank: int, text: str) -> None:
        if self._folder is not None and self._goes_to_file(rank, "stderr"):
            self._folder.add(rank, text)


def sink_for(kind: str | os.PathLike[str] | Streams, nodes: list[Node]) -> Piped:
    """Return the sink for that value of ``output=``."""
    if isinstance(kind, Streams):
        return _Selected(kind, nodes)
    labels = _labels(nodes)
    if kind == "prefix":
        return _Labelled(labels)
    if kind == "inherit":
        return _Plain()
    if kind == "capture":
        return Capture()
    return _Folder(kind, [(rank, stream) for rank in labels for stream in STREAMS])


def _labels(nodes: list[Node]) -> dict[int, str]:
    return {rank: f"{node.name}:{rank}" for node in nodes for rank in node.ranks}


class Writer:
    """
    The thread that writes to a sink, so that a reader of our output who pauses does not stop the heartbeat.

    A node may have a limited number of bytes on the way; *acknowledge* lets it send more.
    """

    def __init__(self, sink: Piped, acknowledge: Callable[[int, int], None]) -> None:
        self.sink = sink
        self._acknowledge = acknowledge
        self._queue: queue.SimpleQueue[tuple[int, Printed] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mp-spawn output", daemon=True)
        self._thread.start()

    def rename(self, node: Node) -> None:
        """Have the name of another node in front of the lines of its ranks."""
        if isinstance(self.sink, _Labelled):
            self.sink.labels.update(_labels([node]))

    def put(self, node: int, printed: Printed) -> None:
        """Queue a piece of output from a node."""
        if self.sink.is_given_up:
            self._acknowledge(node, len(printed.data))
        else:
            self._queue.put((node, printed))

    def finish(self, is_given_up: Callable[[], bool]) -> None:
        """Write the rest and stop; leave it if nobody reads it and *is_given_up* says so."""
        self._queue.put(None)
        if not self.sink.is_given_up:
            self.sink.is_given_up = not has_written(self._thread, is_given_up)

    def discard(self) -> None:
        """Write nothing more, and let the nodes send on."""
        self.sink.is_given_up = True
        logger.error(LOST)
        with suppress(queue.Empty):
            while item := self._queue.get_nowait():
                self._acknowledge(item[0], len(item[1].data))

    def _run(self) -> None:
        open_ends = set()
        while (item := self._queue.get()) is not None:
            node, (rank, stream, data) = item
            if data:
                open_ends.add((rank, stream))
                self.sink.handle(self.sink.take, rank, stream, data)
            elif (rank, stream) in open_ends:
                open_ends.discard((rank, stream))
                self.sink.handle(self.sink.closed, rank, stream)
            self._acknowledge(node, len(data))
        for rank, stream in open_ends:  # of a node that was lost: its last line may have no end
            self.sink.closed(rank, stream)
