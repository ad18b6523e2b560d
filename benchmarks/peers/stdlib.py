"""The standard library: the array is pickled into the pipe and out of it."""

from __future__ import annotations

from benchmarks.peers.base import Peer


class StandardLibrary(Peer):
    """`multiprocessing.SimpleQueue`, one there and one back."""

    name = "stdlib"
    slow = True
