"""The modules that children need of mp_core: the fork server imports this one; see `fork_server.py`."""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.popen_forkserver
import multiprocessing.queues
import multiprocessing.synchronize
import pkgutil

from mp_core import _channel_queues, _queue_locks, children, contexts, install, lease, locks, main_module

# With these of the standard library, a child receives its process object and makes and receives queues. runpy imports
# pkgutil to run the main module of a child.
__all__ = ["_channel_queues", "_queue_locks", "children", "contexts", "lease", "locks", "multiprocessing", "pkgutil"]

install()
main_module.watch_import()
