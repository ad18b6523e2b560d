"""One pickle for several receivers: how each kind of object may be in it.

A claim is good for one receiver, so a pickle with claims in it cannot simply be sent twice. A launcher takes the claims
out, and gives each rank its own; for that it has to know which reducers put them in as objects of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

__all__ = ["Travels", "declare", "travels"]

#   "by claims"  as its reducer says; what is a claim in that (Block, Lease, Claim) is an object of its own
#   "by buffer"  it is nobody's but the sender's, and its own pickle (protocol 5) has its bytes beside it
#   "alone"      once for each receiver
Travels = Literal["by claims", "by buffer", "alone"]

_ways: dict[Any, Callable[[Any], Travels]] = {}


def declare(reducer: Any, way: Callable[[Any], Travels]) -> None:
    """Say how what the registered *reducer* pickles may be pickled for several receivers."""
    _ways[reducer] = way


def travels(reducer: Any, thing: Any) -> Travels:
    """How *thing*, which *reducer* pickles, may be pickled for several receivers; "alone" when nobody has said."""
    way = _ways.get(reducer)
    return "alone" if way is None else way(thing)
