"""Settings of the environment that the C library uses: a value it cannot use is an error here, at import."""

from __future__ import annotations

import os

from mp_core._native import ffi, lib

__all__ = ["check_settings", "parse_bytes"]


def parse_bytes(text: str) -> int:
    """
    Return the number of bytes that *text* stands for, as the C library reads it.

    Parameters
    ----------
    text : str
        Digits, and maybe a fraction and a unit: ``K`` and ``KiB`` are 1024, ``kB`` is 1000, and so on up to ``P``.
        Upper and lower case are the same.

    Returns
    -------
    int
        0 or more, below 2**64.

    Raises
    ------
    ValueError
        *text* is no such number.

    Examples
    --------
    >>> parse_bytes("512 MiB"), parse_bytes("1.5k"), parse_bytes("100kB")
    (536870912, 1536, 100000)
    """
    nbytes = ffi.new("uint64_t *")
    if lib.mpshm_parse_bytes(text.encode("utf-8", "surrogateescape"), nbytes) < 0:
        raise ValueError(f"{text!r} is not a number of bytes; give one like 1073741824, 512MiB or 2G")
    return int(nbytes[0])


def check_settings() -> None:
    """
    Raise ValueError for a variable of the environment that the C library would have to ignore.
    """
    text = os.environ.get("MP_CACHE_BYTES", "")
    if not text:
        return
    try:
        parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"MP_CACHE_BYTES: {error}") from None


check_settings()
