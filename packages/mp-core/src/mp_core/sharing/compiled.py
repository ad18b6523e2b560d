"""libshm: load the compiled library. No other module of mp_core imports it.

The functions are those of the module `_block`, which is written by hand (`native/`) and compiled into the same file as
cffi's module `_libshm`, so both use one copy of libshm. A start needs no function of cffi's; the others are in
`library.py`. `c_api` is a capsule with the C functions that other compiled packages use (`native/mp_core.h`).
`portable` has the same functions for platforms where libshm does not run.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec

from mp_core._version import __version__

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "LARGE",
    "LEAST_BUFFER",
    "LIBSHM",
    "LINE_SIZE",
    "LONGEST",
    "SENT",
    "STRATEGIES",
    "Buffer",
    "Channel",
    "Line",
    "ObjectTable",
    "PickleReader",
    "PickleWriter",
    "ReducerTable",
    "SemLock",
    "TryLock",
    "allocate",
    "attach_by_descriptors",
    "attach_to",
    "beside",
    "by_value",
    "c_api",
    "channel_count",
    "channels_refused",
    "condition_notify",
    "copied_bytes",
    "copy_large",
    "create_sync",
    "discard",
    "discard_unread",
    "find",
    "handle_alive",
    "in_message",
    "is_of_atoms",
    "is_small",
    "lasting_handle",
    "library_name",
    "load_beside",
    "loads",
    "make_channel",
    "make_line",
    "message_exhausted",
    "only_atoms",
    "open_block",
    "open_channel",
    "open_descriptors_for_child",
    "open_line",
    "own_session",
    "pack_arrow",
    "peer",
    "pickled",
    "pickled_by_value",
    "plain_data",
    "plain_loads",
    "plain_pickle",
    "rebuild_block",
    "rebuild_copy",
    "recorders",
    "reduce_block",
    "reduce_copy",
    "reference_of",
    "register_at_fork",
    "sent",
    "session_of",
    "set_message_timeout",
    "setup",
    "setup_channels",
    "setup_locks",
    "setup_receiving",
    "setup_reducer_table",
    "share",
    "shares_now",
    "strategy",
    "sync_handle",
    "timeline_blocks",
    "timeline_close",
    "timeline_name",
    "timeline_now",
    "timeline_open",
    "timeline_write",
    "unpack_arrow",
    "wait_any",
]

_FOLDER = os.path.dirname(os.path.dirname(__file__))
_FILE = os.path.join(_FOLDER, "_libshm.abi3.so")


def _load_block() -> Any:
    """Load the second module in the file of `_libshm`; the import system finds only the one that the file names."""
    name = "mp_core._block"
    if not os.path.exists(_FILE):
        if getattr(sys, "frozen", False):
            raise ImportError(
                f"this frozen program lacks {_FILE}: freeze it with PyInstaller 6, which finds mp-core's hook, "
                "or add mp_core._libshm, _cffi_backend and the file mp_core/shm-manager to what it bundles"
            )
        raise ImportError(
            "this mp-core has no libshm (mp_core._libshm): it was built with MP_WITHOUT_LIBSHM=1. Install mp-core "
            "again without that variable, or set it here too, for portable sharing"
        )
    loader = ExtensionFileLoader(name, _FILE)
    spec = ModuleSpec(name, loader, origin=_FILE)
    module: Any = loader.create_module(spec)
    module.__spec__, module.__loader__, module.__file__ = spec, loader, _FILE
    loader.exec_module(module)
    compiled = module.version()
    if compiled != __version__:
        raise ImportError(
            f"mp_core {__version__} found a compiled library of version {compiled} at {_FILE}: two installations are "
            "mixed; reinstall mp-core"
        )
    sys.modules[name] = module  # its functions are pickled by that name
    return module


_block = _load_block()
if (_refused := _block.set_manager(os.fsencode(os.path.join(_FOLDER, "shm-manager")))) < 0:
    raise OSError(-_refused, f"the path of shm-manager: {os.strerror(-_refused)}")

#: Whether memory is shared by libshm, and not by `portable`.
LIBSHM = True
#: The recorder of a timeline (`mp_core.timeline.recorder`); empty while none is recorded.
recorders: list[Any] = []
#: The bytes that the line of a message may have, with the zero at its end.
LINE_SIZE: int = _block.MPSHM_SITE_SIZE
#: Bytes, texts and the like of fewer bytes stay in the pickle: MP_LARGE in messages.h.
LARGE = 1 << 16
#: Private buffers of fewer bytes stay in the pickle: the second pickle that carries a place takes as long as the pipe.
LEAST_BUFFER = 1 << 15
#: The strategies, the default first, with the number of each.
STRATEGIES: dict[str, int] = {
    "file_descriptor": _block.MPSHM_FILE_DESCRIPTOR,
    "file_system": _block.MPSHM_FILE_SYSTEM,
}

c_api: Any = _block.c_api  # PyCapsule_Import finds it under "mp_core.sharing.backend.c_api"
Buffer: type = _block.Buffer
allocate: Any = _block.allocate
find: Any = _block.find
setup: Any = _block.setup
setup_receiving: Any = _block.setup_receiving
strategy: Any = _block.strategy
rebuild_block: Any = _block.rebuild_block
copy_large: Any = _block.copy_large
PickleReader: type = _block.PickleReader
PickleWriter: type = _block.PickleWriter
rebuild_copy: Any = _block.rebuild_copy
reduce_block: Any = _block.reduce_block
reduce_copy: Any = _block.reduce_copy
lasting_handle: Any = _block.lasting_handle
discard: Any = _block.discard
discard_unread: Any = _block.discard_unread
loads: Any = _block.loads
in_message: Any = _block.in_message
SENT: Any = _block.SENT
pickled: Any = _block.pickled
pickled_by_value: Any = _block.pickled_by_value
sent: Any = _block.sent
by_value: Any = _block.by_value
shares_now: Any = _block.shares_now
share: Any = _block.share
beside: Any = _block.beside
load_beside: Any = _block.load_beside
ObjectTable: Any = _block.ObjectTable
ReducerTable: Any = _block.ReducerTable
setup_reducer_table: Any = _block.setup_reducer_table
message_exhausted: Any = _block.message_exhausted
pack_arrow: Any = _block.pack_arrow
peer: Any = _block.peer
register_at_fork: Any = _block.register_at_fork
is_of_atoms: Any = _block.is_of_atoms
is_small: Any = _block.is_small
copied_bytes: Any = _block.copied_bytes
Channel: type = _block.Channel
channel_count: Any = _block.channel_count
channels_refused: Any = _block.channels_refused
make_channel: Any = _block.make_channel
open_channel: Any = _block.open_channel
only_atoms: Any = _block.only_atoms
plain_loads: Any = _block.plain_loads
plain_data: Any = _block.plain_data
plain_pickle: Any = _block.plain_pickle
setup_channels: Any = _block.setup_channels
SemLock: type = _block.SemLock
TryLock: type = _block.TryLock
#: The line between a pool and a worker, and the most bytes of one of its messages.
Line: type = _block.Line
LONGEST: int = _block.LONGEST
make_line: Any = _block.make_line
open_line: Any = _block.open_line
wait_any: Any = _block.wait_any
open_block: Any = _block.open_block
create_sync: Any = _block.create_sync
condition_notify: Any = _block.condition_notify
setup_locks: Any = _block.setup_locks
sync_handle: Any = _block.sync_handle
own_session: Any = _block.own_session
unpack_arrow: Any = _block.unpack_arrow
attach_to: Any = _block.attach_to
open_descriptors_for_child: Any = _block.open_descriptors_for_child
set_message_timeout: Any = _block.set_message_timeout
timeline_open: Any = _block.timeline_open
timeline_close: Any = _block.timeline_close
timeline_name: Any = _block.timeline_name
timeline_now: Any = _block.timeline_now
timeline_blocks: Any = _block.timeline_blocks
timeline_write: Any = _block.timeline_write
handle_alive: Any = _block.handle_alive


def attach_by_descriptors(session: bytes, fds: list[int]) -> None:
    """Attach this child to its parent's session by descriptors, which the library takes over."""
    _block.attach_by_descriptors(session, *fds)


def library_name() -> str:
    """Return the file name of the library, by which another process's mappings show that it has loaded it."""
    return os.path.basename(_FILE)


def session_of(handle: bytes) -> bytes:
    """Return the id of the session of a handle."""
    return handle[: _block.MPSHM_ID_SIZE]


def reference_of(handle: bytes) -> bytes:
    """Return the part of a handle that names its in-flight reference."""
    return handle[: _block.MPSHM_REFERENCE_SIZE]
