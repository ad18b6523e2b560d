"""`Streams`: the streams of ranks that go to files, and those that are shown: -r, -t and --local-ranks-filter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_BITS = {"stdout": 1, "stderr": 2}
_SELECTION = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")


def is_selection(text: str) -> bool:
    """
    Tell whether *text* selects streams.

    >>> is_selection("3"), is_selection("0:1,1:3"), is_selection("3.py")
    (True, True, False)
    """
    return _SELECTION.fullmatch(text) is not None


class Selection(NamedTuple):
    """Streams of ranks: 1 is the standard output, 2 the standard error, 3 both."""

    every: int = 0
    #: By the number of the rank on its node.
    some: Mapping[int, int] = {}

    @classmethod
    def of(cls, option: str, text: str) -> Selection:
        """
        Return the selection that the value of an option makes.

        >>> Selection.of("--tee", "0:1,1:3")
        Selection(every=0, some={0: 1, 1: 3})
        """
        if not is_selection(text):
            raise ValueError(
                f"{option} {text} selects no streams; give 0, 1 (standard output), 2 (standard error) or 3 (both), or "
                "one of them for ranks of a node, as in 0:1,1:3"
            )
        if ":" not in text:
            return cls(int(text))
        pairs = (pair.split(":") for pair in text.split(","))
        return cls(0, {int(rank): int(value) for rank, value in pairs})

    def has(self, local_rank: int, stream: str) -> bool:
        return bool(self.some.get(local_rank, self.every) & _BITS[stream])


NO_STREAM = Selection()


class Streams(NamedTuple):
    """A place for each stream of each rank: a file in *folder*, this program's own stream, both, or neither."""

    folder: str
    #: To files only.
    redirects: Selection = NO_STREAM
    #: To files, and shown.
    tee: Selection = Selection(3)
    #: The ranks of a node whose output is shown; None for all.
    shown: frozenset[int] | None = None

    def goes_to_file(self, local_rank: int, stream: str) -> bool:
        return self.redirects.has(local_rank, stream) or self.tee.has(local_rank, stream)

    def are_shown(self, local_rank: int, stream: str) -> bool:
        if self.shown is not None and local_rank not in self.shown:
            return False
        return self.tee.has(local_rank, stream) or not self.redirects.has(local_rank, stream)

    def need_folder(self) -> bool:
        return any(value for each in (self.redirects, self.tee) for value in (each.every, *each.some.values()))
