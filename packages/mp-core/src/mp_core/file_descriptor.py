"""The file_descriptor strategy: a sealed memfd, met by passing its descriptor."""

from __future__ import annotations

import os
from multiprocessing import context, reduction
from typing import Any

from mp_core._native import check, ffi, lib

__all__ = ["CODE", "describe", "forget", "meet"]

CODE: int = lib.MPSHM_FILE_DESCRIPTOR


def describe(segment: Any, block: object) -> Any:
    """What another process needs to meet *segment*, in a form that multiprocessing can pickle."""
    popen = context.get_spawning_popen()
    if popen is not None:
        # The child inherits the descriptor at exec, which comes later than this pickle: keep it open until then.
        popen.__dict__.setdefault("_mp_blocks", []).append(block)
    return reduction.DupFd(lib.mpshm_segment_fd(segment))


def meet(ticket: Any) -> Any:
    """The segment that *ticket* describes, mapped here. The caller closes it."""
    fd = ticket.detach()
    try:
        out = ffi.new("mpshm_segment **")
        check(lib.mpshm_segment_open_fd(fd, out), "this descriptor is not a segment of shared memory")
    finally:
        os.close(fd)
    return out[0]


def forget(segment: Any) -> None:
    """Nothing to give back: the kernel counts descriptors and mappings."""
