"""The file_system strategy: a POSIX shared memory object with a random name, met by that name."""

from __future__ import annotations

from typing import Any

from mp_core._native import check, ffi, lib

__all__ = ["CODE", "describe", "forget", "meet"]

CODE: int = lib.MPSHM_FILE_SYSTEM


def describe(segment: Any, block: object) -> bytes:
    """What another process needs to meet *segment*; the message takes a claim of its own along."""
    check(lib.mpshm_segment_claim(segment), "share a block")
    name: bytes = ffi.string(lib.mpshm_segment_name(segment))
    return name


def meet(ticket: Any) -> Any:
    """The segment that *ticket* names, mapped here; the message's claim is now the caller's."""
    if not isinstance(ticket, bytes):
        raise ValueError(f"the handle of a block is damaged: a name was expected, not {type(ticket).__name__}")
    out = ffi.new("mpshm_segment **")
    check(lib.mpshm_segment_open_name(ticket, out), f"no such shared memory: {ticket!r}")
    return out[0]


def forget(segment: Any) -> None:
    """Give one claim back; the last one removes the name."""
    lib.mpshm_segment_release(segment)
