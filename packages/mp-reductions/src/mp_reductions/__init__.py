"""Reducers that send NumPy arrays between processes through shared memory.

After `init_reductions()` every `np.ndarray` that crosses a process boundary through multiprocessing (queues, pipes,
pools, arguments, results, executors) is copied once into shared memory, or not at all if it lives there already.

    shared.empty, zeros, ones, full, array, …     arrays made in shared memory
    shared_allocator                              a scope in which NumPy allocates in shared memory
    is_shared, share_memory, share_memory_        ask, copy, move in place
    get_inline_limit, set_inline_limit            private arrays up to this size travel in the message itself
"""

from mp_core import __version__ as __version__
from mp_reductions import shared
from mp_reductions.allocator_scope import install_shared_allocator, shared_allocator, uninstall_shared_allocator
from mp_reductions.array import init_reductions
from mp_reductions.inline import get_inline_limit, set_inline_limit
from mp_reductions.sharing import is_shared, share_memory, share_memory_

__all__ = [
    "get_inline_limit",
    "init_reductions",
    "install_shared_allocator",
    "is_shared",
    "set_inline_limit",
    "share_memory",
    "share_memory_",
    "shared",
    "shared_allocator",
    "uninstall_shared_allocator",
]
