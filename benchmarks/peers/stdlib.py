"""The standard library, which pickles the array into the pipe."""

from __future__ import annotations

from benchmarks.peers.base import Peer


class StandardLibrary(Peer):
    """`multiprocessing.SimpleQueue`, one there and one back."""

    name = "stdlib"
    slow = True
