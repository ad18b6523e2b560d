"""The modules that children need of mp_core: the fork server imports this one; see `fork_server.py`."""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.popen_forkserver
import multiprocessing.queues
import multiprocessing.synchronize
import pkgutil

from mp_core import install
from mp_core.channels import channel_queues
from mp_core.children import inheritance, main_module
from mp_core.installation import contexts
from mp_core.locks import queue_locks, robust_locks
from mp_core.memory import lease

# With these of the standard library, a child receives its process object and makes and receives queues. runpy imports
# pkgutil to run the main module of a child.
__all__ = [
    "channel_queues",
    "contexts",
    "inheritance",
    "lease",
    "multiprocessing",
    "pkgutil",
    "queue_locks",
    "robust_locks",
]

install()
main_module.watch_import()
