"""The seconds of an option: a number, and no more than a wait takes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# About 23 days: a poll takes milliseconds as a C int, and some waits add seconds of their own.
MOST = 2_000_000.0


def checked_seconds(name: str, value: Any) -> Any:
    """
    Return the seconds *value* of the option *name*, at most `MOST`; None as it is.

    >>> checked_seconds("timeout", float("inf"))
    2000000.0
    >>> checked_seconds("timeout", "1")
    Traceback (most recent call last):
    TypeError: timeout='1' is a str; give a number of seconds
    """
    if value is None:
        return None
    try:
        number = value + 0.0
    except TypeError:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a number of seconds") from None
    if number != number:
        raise ValueError(f"{name}=nan is no number of seconds; give None for no limit")
    return min(number, MOST)
