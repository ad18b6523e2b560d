"""Named arrays: programs that were started separately find one array by its name.

Note [The file of a named array]
--------------------------------
    /dev/shm/mp_all.UID.NAME      mode 0600

    +-------------------------------------------+----------------------+
    | MAGIC | length | shape and dtype, as text  | the array's elements |
    +-------------------------------------------+----------------------+
    0                                            a multiple of 4096

The creator makes a file without a name, reserves its memory, writes the header, and then links the file to its name. So
a creator that is killed leaves no name, each name leads to a whole array, and one of two creators at once gets
`FileExistsError`. The kernel keeps the memory until the name is removed and no process maps the file.
"""

from __future__ import annotations

import ast
import errno
import math
import mmap
import os
import stat
import struct
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mp_core.memory.block import reason
from mp_core.sharing import backend
from mp_core.system import machine
from mp_reductions.like_constructors import Array, DTypeOf, S, Shape
from mp_reductions.mapped import FOLDER, map_file
from mp_reductions.sharing import checked_dims, checked_dtype

_MAGIC = b"mp_all.named\x00\x00\x00\x01"
_LENGTH = struct.Struct("<Q")
_PAGE = 4096
_LONGEST = 255  # bytes of a file's name
_MOST = 1 << 62  # bytes of a file
_LARGE = 64 << 20  # bytes for which the limits of control groups are read


@overload
def named(name: str, shape: Shape | None, dtype: DTypeOf[S], *, create: bool = ...) -> NDArray[S]: ...
@overload
def named(name: str, shape: Shape | None = ..., *, dtype: DTypeOf[S], create: bool = ...) -> NDArray[S]: ...
@overload
def named(name: str, shape: Shape | None = ..., dtype: DTypeLike | None = ..., *, create: bool = ...) -> Array: ...
def named(name: str, shape: Any = None, dtype: Any = None, *, create: bool = False) -> Array:
    """
    Return the shared array of a name: an existing one, or a new one, filled with zeros.

    Programs of one user that were started separately share an array so. The array stays until its name is removed by
    `unlink` and no process has the array any more, or until the machine restarts; the death of a process, its creator
    included, does not end it.

    Parameters
    ----------
    name : str
        Any text without a slash; about 240 bytes at most, less the digits of the user's number.
    shape : int or sequence of int, optional
        The lengths of the axes. A new array needs it; an existing one is checked against it.
    dtype : data type, optional
        The type of an element, float64 for a new array if not given; an existing one is checked against it.
    create : bool, default False
        True to make a new array.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory; every process that has it sees all writes.

    Raises
    ------
    FileExistsError
        *create* is true, and the name exists.
    FileNotFoundError
        *create* is false, and the name does not exist.
    ValueError
        The existing array has another shape or dtype; or *name* is not a valid name of an array.
    PermissionError
        Another user has taken the name.
    MemoryError
        ``/dev/shm`` has less memory; the message has the sizes.
    TypeError
        *dtype* contains Python objects, or a new array has no shape.

    See Also
    --------
    unlink : remove the name.

    Examples
    --------
    >>> a = mp.shared.named("weights of the docstring", (2, 3), create=True)
    >>> b = mp.shared.named("weights of the docstring")  # usually in another program
    >>> b[0, 0] = 1.5
    >>> a[0, 0]
    np.float64(1.5)
    >>> mp.shared.unlink("weights of the docstring")
    """
    path = _path(name)
    dims = None if shape is None else checked_dims(shape)
    kind = None if dtype is None else checked_dtype(np.dtype(dtype))
    if kind is not None and kind.subdtype is not None:  # NumPy makes dimensions of it
        kind, inner = kind.subdtype
        dims = None if dims is None else (*dims, *inner)
    if not create:
        return _open(path, name, dims, kind)
    if dims is None:
        raise TypeError(f"a new array needs a shape: named({name!r}, shape, dtype, create=True)")
    return _create(path, name, dims, np.dtype(np.float64) if kind is None else kind)


def unlink(name: str) -> None:
    """
    Remove the name of an array that ``named`` made; its memory is freed when no process has the array any more.

    A new array may have the name at once, and is another one.

    Parameters
    ----------
    name : str
        As for `named`.

    Raises
    ------
    FileNotFoundError
        The name does not exist.
    ValueError
        *name* is not a valid name of an array.

    See Also
    --------
    named : make or find an array.

    Examples
    --------
    >>> a = mp.shared.named("to be removed", 3, create=True)
    >>> mp.shared.unlink("to be removed")
    >>> a.sum()  # its memory is there as long as the array is
    np.float64(0.0)
    """
    try:
        os.unlink(_path(name))
    except FileNotFoundError:
        raise _not_found(name) from None


# ---- names and forms -------------------------------------------------------------------------------------------------


def _path(name: str) -> str:
    if not backend.LIBSHM:
        raise OSError(errno.ENOSYS, f"named arrays need libshm, which does not run on {machine.name()}; send the array")
    if not isinstance(name, str):
        raise TypeError(f"the name of an array is a text, not {type(name).__name__}")
    file = f"mp_all.{os.geteuid()}.{name}"
    most = _LONGEST - len(file) + len(name)
    if not name or "/" in name or "\0" in name or len(os.fsencode(file)) > _LONGEST:
        raise ValueError(f"invalid array name {name!r}: use 1 to {most} bytes of text without a slash")
    return os.path.join(FOLDER, file)


def _not_found(name: str) -> FileNotFoundError:
    why = "no array has this name; its creator calls named(name, shape, dtype, create=True)"
    return FileNotFoundError(errno.ENOENT, why, name)


def _header(dims: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    text = repr((dims, np.lib.format.dtype_to_descr(np.lib.format.drop_metadata(dtype)))).encode()
    header = _MAGIC + _LENGTH.pack(len(text)) + text
    return header + bytes(-len(header) % _PAGE)


def _read_header(mapping: mmap.mmap, name: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Return the offset of the elements, the shape, and the dtype."""
    at = len(_MAGIC) + _LENGTH.size
    try:
        if mapping[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it begins otherwise")
        end = at + _LENGTH.unpack(mapping[len(_MAGIC) : at])[0]
        dims, descr = ast.literal_eval(mapping[at:end].decode())
        dtype = np.lib.format.descr_to_dtype(descr)
        offset = end + -end % _PAGE
        if offset + math.prod(dims) * dtype.itemsize > len(mapping):
            raise ValueError("it is too short")
    except (ValueError, TypeError, SyntaxError, struct.error) as error:
        raise ValueError(f"the file of {name!r} in {FOLDER} is no array made by named: {error}") from None
    return offset, dims, checked_dtype(dtype)


# ---- files -----------------------------------------------------------------------------------------------------------


def _open(path: str, name: str, dims: tuple[int, ...] | None, dtype: np.dtype[Any] | None) -> Array:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _not_found(name) from None
    try:
        st = os.fstat(fd)
        if st.st_uid != os.geteuid() or not stat.S_ISREG(st.st_mode):
            raise PermissionError(errno.EPERM, "another user has taken the name", name)
        mapping = map_file(fd, os.path.basename(path)) if st.st_size else mmap.mmap(-1, _PAGE)
    finally:
        os.close(fd)
    offset, found_dims, found = _read_header(mapping, name)
    if (dims is not None and dims != found_dims) or (dtype is not None and dtype != found):
        asked = f"shape {found_dims if dims is None else dims} and dtype {found if dtype is None else dtype}"
        raise ValueError(f"{name!r} is an array of shape {found_dims} and dtype {found}, not of {asked}")
    return _over(mapping, offset, found_dims, found)


def _exists(name: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "an array has this name already; open it without create, or unlink it", name)


def _create(path: str, name: str, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if os.path.lexists(path):
        raise _exists(name)
    header = _header(dims, dtype)
    nbytes = len(header) + math.prod(dims) * dtype.itemsize
    fd = _reserved(nbytes)
    try:
        os.pwrite(fd, header, 0)
        try:
            mapping = map_file(fd, os.path.basename(path))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"cannot map {nbytes} bytes: this process may have no more memory (ulimit -v)") from None
        made = _over(mapping, len(header), dims, dtype)
        folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # with a folder, link() follows the symbolic link in /proc
            os.link(f"/proc/self/fd/{fd}", os.path.basename(path), src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            raise _exists(name) from None
        finally:
            os.close(folder)
    finally:
        os.close(fd)
    return made


def _reserved(nbytes: int) -> int:
    """Return a descriptor of a new file without a name, whose memory is reserved: a write to it never fails."""
    import resource  # which Windows has not

    from mp_core.system.control_groups import memory_left

    try:
        fd = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        raise OSError(errno.ENODEV, f"{FOLDER} is missing; mount a tmpfs there") from None
    try:
        os.fchmod(fd, 0o600)  # whatever the umask is
        if nbytes > _MOST:
            raise OSError(errno.ENOSPC, "")
        if nbytes > resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= 0:
            raise MemoryError(f"cannot allocate {nbytes} bytes: {reason(errno.EFBIG)}")
        if nbytes >= _LARGE and nbytes > (left := memory_left()):  # the kernel would kill a process
            raise MemoryError(f"cannot allocate {nbytes} bytes: {left:.0f} are left for this control group")
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        fs = os.statvfs(FOLDER)
        raise MemoryError(
            f"cannot allocate {nbytes} bytes: {FOLDER} has {fs.f_bavail * fs.f_frsize} of "
            f"{fs.f_blocks * fs.f_frsize} bytes free; enlarge it (docker run --shm-size, mount -o remount,size=)"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _over(mapping: mmap.mmap, offset: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    nbytes = math.prod(dims) * dtype.itemsize
    # An array over the result of frombuffer() keeps the mapping from being closed under it.
    make: Any = np.ndarray
    a: Array = make(dims, dtype, np.frombuffer(mapping, np.uint8, nbytes, offset) if nbytes else mapping)
    return a
