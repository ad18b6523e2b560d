"""Sharing strategies: how shared memory is made, and how another process attaches it.

libshm implements them, a file each (`memfd_object.c`, `named_object.c`); this module lists those of the platform, and
sets the current one, which the C library keeps.
"""

from __future__ import annotations

from collections.abc import Callable

from mp_core.sharing import backend
from mp_core.system import settings

CODES: dict[str, int] = backend.STRATEGIES
NAMES: dict[int, str] = {code: name for name, code in CODES.items()}

_ALL: tuple[str, ...] = tuple(CODES)


def _validated(name: str, source: str = "sharing strategy") -> str:
    if name not in _ALL:
        raise ValueError(f"unknown {source} {name!r}; this platform has {', '.join(map(repr, _ALL))}")
    return name


# The C library keeps the current strategy.
backend.strategy(CODES[_validated(settings.sharing_strategy() or _ALL[0], "value of MP_SHARING_STRATEGY,")])


def set_sharing_strategy(new_strategy: str) -> None:
    """
    Set how shared memory is made from now on; memory that exists or is in flight keeps working.

    Children started after this inherit it. ``MP_SHARING_STRATEGY`` in the environment sets the initial strategy. The
    call also sets the strategy of a library that has the same two, see the page on strategies.

    Parameters
    ----------
    new_strategy : str
        One of `get_all_sharing_strategies`.

    Raises
    ------
    ValueError
        There is no such strategy here; the message lists the strategies.

    Examples
    --------
    >>> mp.set_sharing_strategy("file_system")
    >>> mp.get_sharing_strategy()
    'file_system'
    """
    name = _validated(new_strategy)
    backend.strategy(CODES[name])
    for follower in _followers:
        follower(name)


_followers: list[Callable[[str], None]] = []


def followed_by(follower: Callable[[str], None]) -> None:
    """Call *follower* with the strategy whenever it is set, and now if it is not the platform's default."""
    if follower not in _followers:
        _followers.append(follower)
    if get_sharing_strategy() != _ALL[0]:
        follower(get_sharing_strategy())


def get_sharing_strategy() -> str:
    """
    Return the current sharing strategy.

    Returns
    -------
    str
        ``"file_descriptor"`` or ``"file_system"``.

    Examples
    --------
    >>> mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    True
    """
    return NAMES[backend.strategy(None)]


def get_all_sharing_strategies() -> set[str]:
    """
    Return the strategies of this platform.

    Returns
    -------
    set of str
        On Linux ``file_descriptor`` and ``file_system``, elsewhere ``file_system``.

    Examples
    --------
    >>> "file_system" in mp.get_all_sharing_strategies()
    True
    """
    return set(_ALL)
