"""Stand-in for Windows' named sections, on Linux: a segment is gone with its last handle, and nothing unlinks it.

Every interpreter that has this folder on PYTHONPATH has such a `SharedMemory`: each mapping has a lock of the file,
which the kernel releases with its last descriptor, also in a process that is killed. An object that nobody has locked
is removed before it is opened. The start methods and the locks stay those of Linux.
"""

import fcntl
import os
from multiprocessing import resource_tracker, shared_memory

from mp_core.system.machine import linux, win32

linux.dies_with_last_handle = win32.dies_with_last_handle
linux.mapping_of, linux.SpareDescriptors = win32.mapping_of, win32.SpareDescriptors

# Windows has no resource tracker.
_register, _unregister = resource_tracker.register, resource_tracker.unregister
resource_tracker.register = lambda name, kind: None if kind == "shared_memory" else _register(name, kind)
resource_tracker.unregister = lambda name, kind: None if kind == "shared_memory" else _unregister(name, kind)


class SharedMemory(shared_memory.SharedMemory):
    def __init__(self, name=None, create=False, size=0, **options):
        if not create:
            fd = os.open(f"/dev/shm/{name}", os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # somebody has it
            else:
                os.unlink(f"/dev/shm/{name}")
                raise FileNotFoundError(2, "the last handle was closed", name)
            finally:
                os.close(fd)
        super().__init__(name, create, size, **options)
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # the mapping has a duplicate of the descriptor

    def unlink(self):
        raise AssertionError("nothing unlinks a section")


shared_memory.SharedMemory = SharedMemory
