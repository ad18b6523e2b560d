"""Settings in the environment that the C library reads, and `MP_CHANNEL`; a wrong value is an error at import."""

from __future__ import annotations

import os

from mp_core.machine import runtime_folder

__all__ = ["channels_enabled", "check_settings", "parse_bytes", "runtime_folder"]


def parse_bytes(text: str) -> int:
    """
    Return the number of bytes that *text* means, as the C library reads it.

    Parameters
    ----------
    text : str
        Digits with an optional fraction and unit: ``K`` and ``KiB`` are 1024, ``kB`` is 1000, and so on up to ``P``.
        Upper and lower case are the same.

    Returns
    -------
    int
        0 or more, below 2**64.

    Raises
    ------
    ValueError
        *text* is not a number of bytes.

    Examples
    --------
    >>> parse_bytes("512 MiB"), parse_bytes("1.5k"), parse_bytes("100kB")
    (536870912, 1536, 100000)
    """
    from mp_core import native

    nbytes = native.parse_bytes(text)
    if nbytes is None:
        raise ValueError(f"{text!r} is not a number of bytes; give a value like 1073741824, 512MiB or 2G")
    return nbytes


def channels_enabled() -> bool:
    """Return whether `MP_CHANNEL` asks for channels, as it does unless it is 0."""
    text = os.environ.get("MP_CHANNEL", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"MP_CHANNEL must be 1 for channels or 0 for ordinary pipes, not {text!r}")
    return text != "0"


def check_settings() -> None:
    """
    Raise ValueError for an environment variable whose value the C library would ignore.
    """
    text = os.environ.get("MP_CACHE_BYTES", "")
    if not text:
        return
    try:
        parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"MP_CACHE_BYTES: {error}") from None


check_settings()
