"""Numbers of bytes in texts, as libshm reads them."""

from __future__ import annotations

import re

__all__ = ["parse_bytes"]

_NUMBER = re.compile(
    r"[ \t]*(?=\.?\d)(\d*)\.?(\d*)[ \t]*(?:([kmgtp])(i?b?)|b|bytes)?[ \t\n]*", re.IGNORECASE | re.ASCII
)
_DIGITS = 6  # of a fraction


def parse_bytes(text: str) -> int | None:
    """Return the number of bytes that *text* means, None if it means none. libshm reads it likewise."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    whole, fraction, letter, rest = found.groups()
    unit = 1
    if letter:
        unit = (1000 if rest.lower() == "b" else 1024) ** ("kmgtp".index(letter.lower()) + 1)
    nbytes = int(whole or 0) * unit + unit * int(f"{fraction:0<{_DIGITS}}"[:_DIGITS]) // 10**_DIGITS
    return nbytes if nbytes < 2**64 else None
