"""Messages with a wrong byte or without their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st


def damaged(message: bytes, choose: st.DataObject) -> bytes:
    """
    Return *message* with one byte changed, or cut off at one.
    """
    data, at = bytearray(message), choose.draw(st.integers(0, len(message) - 1))
    if choose.draw(st.booleans()):
        data[at] = choose.draw(st.integers(0, 255))
    else:
        del data[at:]
    return bytes(data)


def outcome(loads: Callable[[bytes], Any], data: bytes, describe: Callable[[Any], Any] = repr) -> Any:
    """
    Return the description of what *loads* makes of the message, or that it refuses it.
    """
    try:
        return describe(loads(data))
    except Exception:
        return "refused"
