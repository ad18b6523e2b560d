"""A sentinel, `MISSING = object()`, of a main module that nobody can import is one object in each process.

It gets an identity before its process is forked, or when a function or class that uses it is sent first. It has no weak
references, so each is kept: 16 bytes for every time that the program makes one anew.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

from mp_core.messages.main_globals import new_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_by_identity: dict[str, object] = {}
_identities: dict[int, str] = {}  # by the `id`


def identify(thing: Any) -> None:
    """Give *thing* its identity if it is a sentinel."""
    if type(thing) is object and id(thing) not in _identities:
        _keep(new_identity(), thing)


def _keep(identity: str, thing: object) -> object:
    if not _identities:
        ForkingPickler.register(object, reduce)
    found = _by_identity.setdefault(identity, thing)
    _identities[id(found)] = identity
    return found


def reduce(thing: object) -> Any:
    """Return the reduction of an `object()`, which is a sentinel if it has an identity."""
    identity = _identities.get(id(thing))
    return (object, ()) if identity is None else (made, (identity,))


def made(identity: str) -> object:
    """Return the sentinel that has this identity, or else one that has got it now."""
    return _by_identity.get(identity) or _keep(identity, object())
