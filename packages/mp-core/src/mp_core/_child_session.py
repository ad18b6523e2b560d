"""The state that a child takes over from its parent: the session, the sharing strategy, and whether processes share.

    parent   `for_child_of(popen)`    the state in the pickle of a connection, with descriptors where possible
             `for_launcher(packages)` the state that a launcher sends itself, as the arguments of `_install.attach`
    child    `take_over(state)`       applies the first state that arrives, and no later one

`attach` and `rebuild_connection` need the installation too, and are in `_install.py`, which imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mp_core import _child_descriptors, _native, strategy

__all__ = ["Inherited", "State", "for_child_of", "for_launcher", "take_over"]

_taken_over = False


class Inherited(NamedTuple):
    """The arguments of `_install.attach`."""

    packages: dict[str, str]
    strategy: str
    session: bytes
    sharing: bool


class State(NamedTuple):
    """The parent's state for a child that is being started; a running process keeps its own."""

    strategy: str
    session: bytes
    sharing: bool
    descriptors: tuple[Any, Any] | None = None


def for_child_of(popen: Any) -> tuple[Any, ...]:
    """Return the fields of a `State` for the child that *popen* starts, after attaching to this process's session."""
    name, session = strategy.get_sharing_strategy(), _native.own_session()
    return tuple(State(name, session, _native.share(None), _child_descriptors.for_child_of(popen)))


def for_launcher(packages: dict[str, str]) -> Inherited:
    """Return what a launcher sends to its children, after attaching to this process's session."""
    return Inherited(dict(packages), strategy.get_sharing_strategy(), _native.own_session(), _native.share(None))


def take_over(state: State) -> None:
    """Apply the parent's state in its child: once, since a running process keeps its own."""
    global _taken_over
    if _taken_over:
        return
    _taken_over = True
    strategy.set_sharing_strategy(state.strategy)
    if not state.sharing:
        _native.share(False)
    _child_descriptors.attach(state.session, state.descriptors)
