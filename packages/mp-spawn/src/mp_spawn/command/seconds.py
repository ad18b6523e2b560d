"""The value of an option that is a time, for `mp-spawn` and `mp-all`."""

from __future__ import annotations

import argparse

from mp_spawn.jobs.time_limits import MOST


def seconds(text: str) -> float:
    """
    Return the seconds that *text* names, 0 to `MOST`.

    >>> seconds("2.5")
    2.5
    """
    value = float(text)
    if not 0 <= value <= MOST:  # nan is not in it
        raise argparse.ArgumentTypeError(f"{text} is no time to wait; give seconds, {MOST:.0f} at most")
    return value
