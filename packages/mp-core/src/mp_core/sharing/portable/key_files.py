"""The key file of a process: a file with the keys of the segments that it keeps, for those who come after a kill.

A pool ends its workers by a signal, so a process often dies with segments that it has kept for later. Nobody else knows
them: macOS lists no objects of shared memory. So a process notes a segment in its key file before it makes it. Another
process of the tree that makes its first segment, or ends, reads the key files of those that have died, and unlinks what
nobody uses; the last user of any other segment unlinks it. A process that ends removes its own key file.

Killed while it notes a segment, a process leaves a key without a segment, which does not matter. Two processes that
read one key file at once unlink each segment once: it has one name. If all of them are killed together, the
resource tracker unlinks their segments. Under Windows a segment needs nobody: it goes with its last handle.
"""

from __future__ import annotations

import binascii
import os
import time
from multiprocessing import process

from mp_core.sharing.portable.segment import KEY_SIZE, attach, system
from mp_core.system import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys in a key file from which on those of unlinked segments are left out.
MANY = 4096
#: Seconds after which the key file of a dead process of another tree is removed; the tracker there has done the rest.
OLD_S = 86400.0

_count = 0


def _start() -> str:
    """Return the beginning of the names of key files in this family of processes, which has one authentication key."""
    tree = bytes(process.current_process().authkey) + system.pid_namespace().to_bytes(8, "little")
    return f"portable-{binascii.crc32(tree):08x}-"


def _own_path() -> str:
    return os.path.join(settings.runtime_folder(), f"{_start()}{os.getpid()}")


def note(key: bytes) -> bool:
    """Note a segment that this process is going to make; return whether the key file has become long."""
    global _count
    if system.dies_with_last_handle():
        return False
    fd = os.open(_own_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, key)
    finally:
        os.close(fd)
    _count += 1
    return _count >= MANY


def rewrite(keys: list[bytes]) -> None:
    """Leave *keys* in the key file."""
    global _count
    _count = len(keys) // 2  # so that it is not done each time
    path = _own_path()
    with open(f"{path}.new", "wb") as file:
        file.write(b"".join(keys))
    os.replace(f"{path}.new", path)


def remove() -> None:
    """Remove the key file of this process."""
    global _count
    _count = 0
    if system.dies_with_last_handle():
        return
    try:
        os.unlink(_own_path())
    except OSError:
        pass  # there is none


def clean_up() -> None:
    """Unlink the segments of dead processes that nobody uses."""
    if system.dies_with_last_handle():
        return
    for path, is_ours in _of_the_dead():
        try:
            if is_ours:
                with open(path, "rb") as file:
                    keys = file.read()
                for at in range(0, len(keys), KEY_SIZE):
                    _unlink_unused(keys[at : at + KEY_SIZE])
            elif time.time() - os.stat(path).st_mtime < OLD_S:
                continue
            os.unlink(path)
        except OSError:
            pass  # another process is at it


def _of_the_dead() -> Iterator[tuple[str, bool]]:
    folder, start = settings.runtime_folder(), _start()
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        prefix, _, pid = name.removesuffix(".new").rpartition("-")
        # A key file with the pid of this process is that of another one, which has died.
        if (
            prefix.startswith("portable-")
            and pid.isdigit()
            and (int(pid) == os.getpid() or not system.is_alive(int(pid)))
        ):
            yield os.path.join(folder, name), name.startswith(start)


def _unlink_unused(key: bytes) -> None:
    try:
        segment = attach(key)
    except (OSError, ValueError):
        return  # it was unlinked before
    with segment:
        if segment.is_left_to_its_users():
            segment.unlink_if_unused()
