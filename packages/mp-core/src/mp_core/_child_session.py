"""The state that a child takes over from its parent: session, sharing strategy, whether processes share, timeout.

    parent   `for_child_of(popen)`    the state in the pickle of a connection, with descriptors where possible
             `for_launcher(packages)` the state that a launcher sends itself, as the arguments of `_install.attach`
    child    `take_over(state)`       applies the first state that arrives, and no later one

`attach` and `rebuild_connection` need the installation too, and are in `_install.py`, which imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mp_core import _child_descriptors, _native, message_timeout, strategy

__all__ = ["Inherited", "State", "for_child_of", "for_launcher", "take_over"]

_taken_over = False


class Inherited(NamedTuple):
    """The arguments of `_install.attach`."""

    packages: dict[str, str]
    strategy: str
    session: bytes
    sharing: bool
    message_timeout: float | None


class State(NamedTuple):
    """The parent's state for a child that is being started; a running process keeps its own."""

    strategy: str
    session: bytes
    sharing: bool
    message_timeout: float | None
    descriptors: tuple[Any, Any] | None = None


def for_child_of(popen: Any) -> tuple[Any, ...]:
    """Return the fields of a `State` for the child that *popen* starts, after attaching to this process's session."""
    return tuple(State(*_own(), _child_descriptors.for_child_of(popen)))


def for_launcher(packages: dict[str, str]) -> Inherited:
    """Return what a launcher sends to its children, after attaching to this process's session."""
    return Inherited(dict(packages), *_own())


def _own() -> tuple[str, bytes, bool, float | None]:
    sharing = _native.share(None)
    return strategy.get_sharing_strategy(), _native.own_session(), sharing, message_timeout.get_message_timeout()


def take_over(state: State) -> None:
    """Apply the parent's state in its child: once, since a running process keeps its own."""
    global _taken_over
    if _taken_over:
        return
    _taken_over = True
    strategy.set_sharing_strategy(state.strategy)
    if state.message_timeout is not None:
        message_timeout.set_message_timeout(state.message_timeout)
    if not state.sharing:
        _native.share(False)
    _child_descriptors.attach(state.session, state.descriptors)
