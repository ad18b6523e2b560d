"""Processes of other machines in a timeline: what an engine's agent records there, and how it comes to the owner.

    agent     `NodeTimeline` records the node's processes in a folder of that machine; its files travel by messages
    owner     `receive` puts each file into the folder of the run, with the node and the offset of its clock

Note [What can go wrong]
------------------------
    no room on the node, no libshm there     its processes are not in the timeline; the job goes on
    the node is lost, or its agent killed    likewise; the folder on the node stays
    the timeline has ended before the job    the files are dropped
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import zlib

from mp_core.sharing import backend
from mp_core.system import machine
from mp_core.timeline import events, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The file with the names of the nodes, in the order of their numbers, and the errors of their clocks in ns.
NODES = "nodes.json"
_lock = threading.Lock()


def events_wanted() -> int:
    """Return how many events each process of the timeline that is recorded here keeps; 0 without a timeline."""
    return backend.recorders[0].capacity if backend.recorders else 0


class NodeTimeline:
    """
    Record this process and those that it starts, until `files` has returned their events; nothing for 0 *events*.

    A process that is in a timeline already, because it was started on the owner's machine, stays in that one.
    """

    def __init__(self, events: int, name: str) -> None:
        self._folder: str | None = None
        if not events or not machine.has_libshm():
            return
        if backend.recorders and not os.path.isdir(backend.recorders[0].folder):
            recorder.end()  # of a timeline that has ended
        if backend.recorders:
            return
        with contextlib.suppress(OSError):
            self._folder = tempfile.mkdtemp(prefix="mp-timeline-")
            try:
                own = recorder.begin(self._folder, events)
            except BaseException:
                self.close()
                raise
            own.name_process(name)
            os.environ[recorder.RUN] = own.invitation()

    def files(self) -> Iterator[tuple[str, bytes]]:
        """End, and yield the name and the compressed contents of each file."""
        if self._folder is None:
            return
        self._end()
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._folder)):
                with open(os.path.join(self._folder, name), "rb") as file:
                    yield name, zlib.compress(file.read(), 1)

    def close(self) -> None:
        """End, and remove the folder. Idempotent."""
        if self._folder is not None:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _end(self) -> None:
        if backend.recorders and backend.recorders[0].folder == self._folder:
            recorder.end()
            os.environ.pop(recorder.RUN, None)


def receive(node: str, name: str, data: bytes, clock: float, error: float) -> None:
    """
    Take a file of `NodeTimeline.files` into the timeline that is recorded here, if one is.

    Parameters
    ----------
    node : str
        The name of the node.
    name : str
        Of the file.
    data : bytes
        Its compressed contents.
    clock : float
        Seconds by which the node's clock is ahead of ours.
    error : float
        Seconds by which that may be wrong.
    """
    for own in backend.recorders[:]:  # another thread may end it meanwhile
        with _lock, contextlib.suppress(OSError):
            number = _number(own.folder, node, round(error * 1e9))
            path = os.path.join(own.folder, f"node{number}.{os.path.basename(name).replace('-', '.')}")
            with open(path, "wb") as made:
                made.write(events.of_node(zlib.decompress(data), number, round(-clock * 1e9)))


def _number(folder: str, node: str, error: int) -> int:
    nodes = read(folder)
    nodes[node] = error
    path = os.path.join(folder, NODES)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(nodes, file)
    os.replace(f"{path}.new", path)
    return [*nodes].index(node) + 1


def read(folder: str) -> dict[str, int]:
    """Return the names of the nodes and the errors of their clocks."""
    try:
        with open(os.path.join(folder, NODES), encoding="utf-8") as file:
            nodes: dict[str, int] = json.load(file)
    except FileNotFoundError:
        return {}
    return nodes
