"""Fan-out: how each kind of object may be pickled once for several receivers.

An in-flight reference is good for one receiver, so a pickle that contains some cannot simply be sent twice. A launcher
takes these references out and gives each rank its own. To do so it has to know which reducers pickle them as objects of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

__all__ = ["FanOut", "declare", "fan_out"]

#   "by reference"  as its reducer says; each Block, Lease or LeaseReference in the result is an object of its own
#   "out of band"   the bytes are private to the sender; its pickle (protocol 5) carries them out of band
#   "per receiver"  it is pickled once for each receiver
FanOut = Literal["by reference", "out of band", "per receiver"]

_ways: dict[Any, Callable[[Any], FanOut]] = {}


def declare(reducer: Any, way: Callable[[Any], FanOut]) -> None:
    """Declare how objects that the registered *reducer* pickles may be pickled for several receivers."""
    _ways[reducer] = way


def fan_out(reducer: Any, thing: Any) -> FanOut:
    """Return how *thing*, which *reducer* pickles, may be pickled for several receivers; "per receiver" by default."""
    way = _ways.get(reducer)
    return "per receiver" if way is None else way(thing)
