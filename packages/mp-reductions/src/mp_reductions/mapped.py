"""Arrays over a mapped file of /dev/shm: they travel by the file's name, and the receiver maps the same file.

Such an array is over the buffer of a `multiprocessing.shared_memory.SharedMemory`, or one of `named.py`.

Note [Which file an array maps]
-------------------------------
A `SharedMemory` cannot be reached from an array over its buffer, and a `mmap.mmap` does not tell its file. The kernel
does, in /proc/self/maps, by the address. That is read once for each mapping.

A name may be used again for another file. So a file is known by its name, device and inode together:

    sender      the name leads to another file or to none, or the mapping is private    it sends a copy of the bytes
    receiver    the name leads to another file or to none                               `FileNotFoundError`

The receiver opens the file itself. `SharedMemory` would register the name with the resource tracker, which removes it
when this process ends. The array refers to the mapping, so the memory stays as long as the array does, also when the
name is removed.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mp_core.sharing import backend
from mp_reductions.file_identity import mappings_at
from mp_reductions.inline import portable_dtype
from mp_reductions.layout import span

#: Where the names of shared memory are files.
FOLDER = "/dev/shm"


class _File(NamedTuple):
    """The file of a mapping of this process."""

    name: str
    identity: tuple[int, int]
    """Its device and inode."""
    address: int
    """The address of its first byte, if that is mapped."""


# By mapping; None: no file of FOLDER. And the mappings that this module has made, by device and inode.
_files: weakref.WeakKeyDictionary[mmap.mmap, _File | None] = weakref.WeakKeyDictionary()
_mappings: weakref.WeakValueDictionary[tuple[int, int], mmap.mmap] = weakref.WeakValueDictionary()


def reduce_mapped(a: np.ndarray[Any, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Reduce an array to its file and the place of its bytes there; None if it is not over a file of `FOLDER`."""
    file = _file_of(a)
    if file is None:
        return None
    first, end = span(a)
    offset = _address(a) + first - file.address if a.size else 0
    place = (file.name, file.identity, offset, end - first)
    return rebuild_mapped, (*place, portable_dtype(a.dtype), a.shape, -first, a.strides, a.flags.writeable)


def is_mapped(a: np.ndarray[Any, Any]) -> bool:
    """Return whether `reduce_mapped` can reduce *a*."""
    return _file_of(a) is not None


def rebuild_mapped(
    name: str,
    identity: tuple[int, int],
    offset: int,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    start: int,
    strides: tuple[int, ...],
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """Rebuild an array from a pickle of `reduce_mapped`; `FileNotFoundError` if its file is gone."""
    mapping = _mappings.get(identity)
    if mapping is None or len(mapping) < offset + nbytes:  # the file has grown
        mapping = _map_again(name, identity, writeable)
    whole = np.frombuffer(mapping, np.uint8)
    if offset < 0 or nbytes < 0 or offset + nbytes > whole.size:
        raise ValueError(
            f"the handle of an array is damaged: {name} has {whole.size} bytes, not those from {offset} to "
            f"{offset + nbytes}"
        )
    make: Any = np.ndarray  # which checks that shape, start and strides stay inside the buffer
    a: np.ndarray[Any, Any] = make(shape, dtype, whole[offset : offset + nbytes], start, strides)
    if not writeable:
        a.flags.writeable = False
    return a


def map_file(fd: int, name: str) -> mmap.mmap:
    """Map the whole of an open file of `FOLDER`; the caller closes the descriptor."""
    st = os.fstat(fd)
    identity = (st.st_dev, st.st_ino)
    mapping = _mappings.get(identity)
    if mapping is None or len(mapping) != st.st_size:
        mapping = _map(fd, st.st_size, mmap.PROT_READ | mmap.PROT_WRITE)
        _mappings[identity] = mapping
        _files[mapping] = _File(name, identity, _address(np.frombuffer(mapping, np.uint8)))
    return mapping


def _map(fd: int, nbytes: int, protection: int) -> mmap.mmap:
    # Before CPython 3.13 a mapping always has a descriptor of its own.
    options: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    return mmap.mmap(fd, nbytes, mmap.MAP_SHARED, protection, **options)


def _map_again(name: str, identity: tuple[int, int], writeable: bool) -> mmap.mmap:
    """Map the file that the sender had mapped."""
    if os.path.basename(name) != name:
        raise ValueError(f"the handle of an array is damaged: invalid name {name!r} in {FOLDER}")
    gone = f"an array over the shared memory {name!r} came, but it is gone: unlink it after the array is received"
    mode = os.O_RDWR if writeable else os.O_RDONLY
    try:
        fd = os.open(os.path.join(FOLDER, name), mode | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, gone) from None
    try:
        st = os.fstat(fd)
        if (st.st_dev, st.st_ino) != identity:
            raise FileNotFoundError(errno.ENOENT, gone)
        return map_file(fd, name) if writeable else _map(fd, st.st_size, mmap.PROT_READ)
    finally:
        os.close(fd)


# ---- the file of an array --------------------------------------------------------------------------------------------


def _file_of(a: np.ndarray[Any, Any]) -> _File | None:
    """Return the file that *a* is over, if its name still leads to it."""
    base = _mapping_of(a)
    if base is None or a.dtype.hasobject:
        return None
    try:
        whole = np.frombuffer(base, np.uint8)
        file = _files[base] if base in _files else _files.setdefault(base, _look_up(_address(whole)))
        if file is None or _identity(file.name) != file.identity:
            return None
    except (OSError, ValueError):  # a mapping that was closed, or no /proc
        return None
    first, end = span(a)
    inside = _address(whole) <= _address(a) + first and _address(a) + end <= _address(whole) + whole.size
    return file if inside or not a.size else None


def _mapping_of(a: np.ndarray[Any, Any]) -> mmap.mmap | None:
    base: Any = a.base
    while isinstance(base, np.ndarray | memoryview):
        try:
            base = base.base if isinstance(base, np.ndarray) else base.obj
        except ValueError:  # a memoryview that was released
            return None
    return base if type(base) is mmap.mmap and backend.LIBSHM else None


def _address(a: np.ndarray[Any, Any]) -> int:
    address: int = a.__array_interface__["data"][0]
    return address


def _identity(name: str) -> tuple[int, int]:
    st = os.stat(os.path.join(FOLDER, name), follow_symlinks=False)
    return st.st_dev, st.st_ino


def _look_up(address: int) -> _File | None:
    """Return the file of `FOLDER` that is mapped at an address, and shared."""
    (found,) = mappings_at(address)
    folder, name = os.path.split(found.path) if found is not None else ("", "")
    if found is None or folder != FOLDER or not found.is_shared:
        return None
    major, minor = (int(number, 16) for number in found.file[0].split(":"))
    return _File(name, (os.makedev(major, minor), found.file[1]), found.start - found.offset)
