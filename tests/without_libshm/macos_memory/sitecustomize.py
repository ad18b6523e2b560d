"""Stand-in for macOS's shared memory, on Linux: it refuses what macOS refuses.

That is names of more than 31 bytes, a second ftruncate, and sizes that are no multiple of 16 KiB.
"""

import os
from multiprocessing import shared_memory

from mp_core.system.machine import darwin, linux

linux.whole_pages = darwin.whole_pages

_ftruncate, _SharedMemory = os.ftruncate, shared_memory.SharedMemory


class SharedMemory(_SharedMemory):
    """Objects of shared memory as macOS has them."""

    def __init__(self, name=None, create=False, size=0, **options):
        if len(name.encode()) + 1 > 31:  # PSHMNAMLEN, with the slash
            raise OSError(63, "File name too long", name)
        super().__init__(name, create, size, **options)


def ftruncate(fd, length):
    """Set the size of an object, which is whole pages, once."""
    if length % (1 << 14) or os.fstat(fd).st_size:
        raise OSError(22, "Invalid argument")
    _ftruncate(fd, length)


shared_memory.SharedMemory, shared_memory.os = SharedMemory, type("os", (), {**vars(os), "ftruncate": ftruncate})
