"""Fan-out: how each kind of object may be pickled once for several receivers.

An in-flight reference is good for one receiver, so a pickle that contains some cannot simply be sent twice. A launcher
takes these references out and gives each rank its own. To do so it has to know which reducers pickle them as objects of
their own.
"""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
#   "by reference"  as its reducer says; each Block, Lease or LeaseReference in the result is an object of its own
#   "out of band"   the bytes are private to the sender; its pickle (protocol 5) carries them out of band
#   "per receiver"  it is pickled once for each receiver
if TYPE_CHECKING:
    from typing import Any, Literal

    FanOutMode = Literal["by reference", "out of band", "per receiver"]

_modes: dict[Any, Callable[[Any], FanOutMode]] = {}
_for_one_receiver: tuple[type, ...] = ()
_with_descriptors: tuple[type, ...] = ()


def declare_one_receiver(*kinds: type, descriptors: bool = False) -> None:
    """
    Declare that the pickle of an object of these *kinds* is an in-flight reference, good for one receiver; and whether
    it has *descriptors*.
    """
    global _for_one_receiver, _with_descriptors
    _for_one_receiver += kinds
    if descriptors:
        _with_descriptors += kinds


def is_for_one_receiver(thing: Any) -> bool:
    """Return whether each receiver needs a pickle of *thing* of its own."""
    return isinstance(thing, _for_one_receiver)


def has_descriptors(thing: Any) -> bool:
    """Return whether the pickle of *thing* has descriptors, which a child gets best as it starts."""
    return isinstance(thing, _with_descriptors)


def declare(reducer: Any, mode: Callable[[Any], FanOutMode]) -> None:
    """Declare how objects that the registered *reducer* pickles may be pickled for several receivers."""
    _modes[reducer] = mode


def fan_out_mode(reducer: Any, thing: Any) -> FanOutMode:
    """Return how *thing*, which *reducer* pickles, may be pickled for several receivers; "per receiver" by default."""
    mode = _modes.get(reducer)
    return "per receiver" if mode is None else mode(thing)
