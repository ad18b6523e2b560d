"""Memory-mapped files: the receiver maps the same file, so nothing is copied and both sides see each other's writes.

The file travels as its path and its identity, see `file_identity.py`. These memmaps travel as data: the result of
arithmetic on a memmap (its memory is private), a map of mode "c" (its changes are private), a map whose path is gone or
leads to another file, and every memmap where there is no /proc.

Note [When a file changes]
--------------------------
    before it is sent       replaced, deleted            the bytes of the mapped file, as data
                            shortened below the array    `ValueError` in the sender: its own reads would be SIGBUS
    under way               replaced, deleted,           `ReceiveError`, which names the file. It is opened without
                            shortened                    being made or lengthened, and compared before it is mapped
    after it was received   anything                     both sides have the file that was mapped
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import Any

import numpy as np

from mp_core.sharing import backend
from mp_core.system import fan_out
from mp_core.system.errors import ReceiveError
from mp_reductions.file_identity import FileIdentity, identity_of, place_in_file
from mp_reductions.inline import AS_NUMPY, portable_dtype
from mp_reductions.layout import span
from mp_reductions.sharing import address_of
from mp_reductions.subclass import rebuild_view

# By mapping: the file that it maps, and the place there of its first byte. A mapping keeps its file.
_files: weakref.WeakKeyDictionary[mmap.mmap, tuple[FileIdentity, int]] = weakref.WeakKeyDictionary()

# A path may lead to a terminal or a named pipe by now: do not adopt the one, nor wait for the other.
_OPEN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY if hasattr(os, "O_NONBLOCK") else 0


def reduce_memmap(a: np.memmap[Any, Any]) -> Any:
    """Reduce a memmap to its file and the place of its bytes there, or to its bytes."""
    place = None if backend.by_value() else _place_of(a)
    if place is not None:
        first, end = span(a)
        how = "r+" if a.mode == "w+" else a.mode
        layout = (end - first, portable_dtype(a.dtype), a.shape, -first, a.strides, a.flags.writeable)
        return rebuild_memmap, (os.fspath(a.filename), *place, how, *layout)  # type: ignore[arg-type]
    _check_length(a)
    if backend.by_value() or a.dtype.hasobject:
        return a.__reduce_ex__(AS_NUMPY)
    # As pickle does, without the path: nobody can write to the file through what arrives.
    return rebuild_view, (np.memmap, np.ndarray.view(a, np.ndarray))


def to_many(a: np.memmap[Any, Any]) -> fan_out.FanOutMode:
    """Return how *a* may be pickled for several receivers."""
    return "per receiver" if _place_of(a) is None else "by reference"


def _place_of(a: np.memmap[Any, Any]) -> tuple[tuple[Any, ...], int] | None:
    """Return the file that *a* maps, as its identity, and the place of its bytes; None if its path leads elsewhere."""
    # NumPy gives every view the path, mode and mapping of the original map.
    mapped: mmap.mmap | None = getattr(a, "_mmap", None)
    if mapped is None or a.filename is None or a.mode == "c" or a.size == 0:
        return None
    start = address_of(np.frombuffer(mapped, np.uint8))
    first, end = (address_of(a) - start + each for each in span(a))
    try:
        fd = os.open(a.filename, os.O_RDONLY | _OPEN)
    except (OSError, ValueError):
        return None
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or (mapped not in _files and not _look_up(mapped, start, fd)):
            return None
        identity, in_file = _files[mapped]
        return (tuple(identity), in_file + first) if st.st_size >= in_file + end and _leads_to(fd, identity) else None
    finally:
        os.close(fd)


def _look_up(mapped: mmap.mmap, start: int, fd: int) -> bool:
    """Return whether *mapped* maps an open file, and remember it if so."""
    try:
        in_file = place_in_file(start, fd)
    except (OSError, ValueError):  # an empty file, or no /proc
        return False
    if in_file is not None:
        _files[mapped] = identity_of(fd), in_file
    return in_file is not None


def _leads_to(fd: int, identity: FileIdentity) -> bool:
    return identity.is_same(identity_of(fd))


def _check_length(a: np.memmap[Any, Any]) -> None:
    """Raise `ValueError` if the file of *a* has become too short for it."""
    mapped: mmap.mmap | None = getattr(a, "_mmap", None)
    if mapped is None or a.size == 0:
        return
    try:
        nbytes = mapped.size()
    except (OSError, ValueError):  # it has no descriptor
        return
    start = address_of(np.frombuffer(mapped, np.uint8))
    in_file = a.offset - a.offset % mmap.ALLOCATIONGRANULARITY
    end = in_file + address_of(a) - start + span(a)[1]
    if end > -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE:  # the rest of the last page can be read
        raise ValueError(
            f"a memory-mapped array cannot be sent: its file {a.filename} was shortened to {nbytes} bytes, and the "
            f"array ends at byte {end}; replace a file (os.replace) rather than shorten it"
        )


def rebuild_memmap(
    path: str,
    identity: tuple[Any, ...],
    offset: int,
    mode: Any,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    start: int,
    strides: tuple[int, ...],
    writeable: bool,
) -> np.memmap[Any, Any]:
    """Rebuild a memmap from a pickle of `reduce_memmap`; `ReceiveError` if its path leads to another file by now."""
    before = offset % mmap.ALLOCATIONGRANULARITY
    mapped = _map_again(path, FileIdentity(*identity), mode, offset - before, before + nbytes)
    make: Any = np.ndarray.__new__  # which checks that shape, start and strides stay inside the buffer
    whole = np.frombuffer(mapped, np.uint8)[before:]
    a: np.memmap[Any, Any] = make(np.memmap, shape, dtype, whole, start, strides)
    a._mmap, a.filename, a.offset, a.mode = mapped, path, offset, mode  # type: ignore[attr-defined]
    if not writeable:
        a.flags.writeable = False
    return a


def _map_again(path: str, identity: FileIdentity, mode: str, offset: int, nbytes: int) -> mmap.mmap:
    """Map the file that the sender has mapped."""
    try:
        fd = os.open(path, (os.O_RDONLY if mode == "r" else os.O_RDWR) | _OPEN)
    except FileNotFoundError as error:
        raise _refused(path, "its file is gone", error.errno) from None
    except OSError as error:
        raise _refused(path, f"its file cannot be opened ({error.strerror})", error.errno) from None
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or not _leads_to(fd, identity):
            raise _refused(path, "another file has its path now")
        if st.st_size < offset + nbytes:
            short = f"its file was shortened to {st.st_size} bytes, and the array ends at byte {offset + nbytes}"
            raise _refused(path, short)
        mapped = mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ if mode == "r" else mmap.ACCESS_WRITE, offset=offset)
    finally:
        os.close(fd)
    _files[mapped] = identity, offset
    return mapped


def _refused(path: str, why: str, number: int | None = None) -> ReceiveError:
    return ReceiveError(
        f"a memory-mapped array came, but {why}: {path}; keep the file until the array is received", number
    )
