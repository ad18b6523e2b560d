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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
        if not os.path.isdir(_FOLDER):
            raise ImportError(
                f"{_FOLDER} is in an archive, from which no compiled module can be imported: unpack it, as shiv and "
                "pex do, or set MP_WITHOUT_LIBSHM=1 for portable sharing"
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
#: The path of the program that a session has as its manager.
MANAGER: str = os.path.join(_FOLDER, "shm-manager")
if (_refused := _block.set_manager(os.fsencode(MANAGER))) < 0:
    raise OSError(-_refused, f"the path of shm-manager: {os.strerror(-_refused)}")

#: Whether memory is shared by libshm, and not by `portable`.
LIBSHM: bool = True
#: The recorder of a timeline (`mp_core.timeline.recorder`); empty while none is recorded.
recorders: list[Any] = []
#: The bytes that the line of a message may have, with the zero at its end.
LINE_SIZE: int = _block.MPSHM_SITE_SIZE
#: Bytes, texts and the like of fewer bytes stay in the pickle: MP_LARGE in messages.h.
LARGE: int = 1 << 16
#: Private buffers of fewer bytes stay in the pickle: the second pickle that carries a place takes as long as the pipe.
LEAST_BUFFER: int = 1 << 15
#: The strategies, the default first, with the number of each.
STRATEGIES: dict[str, int] = {
    "file_descriptor": _block.MPSHM_FILE_DESCRIPTOR,
    "file_system": _block.MPSHM_FILE_SYSTEM,
}

# The rest is of _block, see the end. PyCapsule_Import finds the table of C functions under
# "mp_core.sharing.backend.c_api". LONGEST is the most bytes of one message of a `TaskRing`.
Buffer: type
Channel: type
LONGEST: int
TaskRing: type
PickleReader: type
PickleWriter: type
SemLock: type
TryLock: type
ObjectTable: Any
ReducerTable: Any
SENT: Any
allocate: Any
attach_to: Any
out_of_band: Any
by_value: Any
c_api: Any
channel_count: Any
channels_refused: Any
condition_notify: Any
copied_bytes: Any
copy_large: Any
create_sync: Any
dict_of: Any
discard: Any
discard_unread: Any
find: Any
handle_alive: Any
in_message: Any
is_of_atoms: Any
is_small: Any
lasting_handle: Any
load_out_of_band: Any
loads: Any
look: Any
make_channel: Any
make_task_ring: Any
message_exhausted: Any
only_atoms: Any
open_block: Any
open_channel: Any
open_descriptors_for_child: Any
open_task_ring: Any
own_session: Any
pack_arrow: Any
peer: Any
pickled: Any
pickled_by_value: Any
plain_data: Any
plain_loads: Any
plain_pickle: Any
rebuild_block: Any
rebuild_copy: Any
reduce_block: Any
reduce_copy: Any
register_at_fork: Any
see: Any
sent: Any
set_message_timeout: Any
setup: Any
setup_channels: Any
setup_locks: Any
setup_receiving: Any
setup_reducer_table: Any
share: Any
shares_now: Any
strategy: Any
sync_handle: Any
timeline_blocks: Any
timeline_close: Any
timeline_name: Any
timeline_now: Any
timeline_open: Any
timeline_write: Any
unpack_arrow: Any
wait_any: Any


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


if not TYPE_CHECKING:
    globals().update({name: getattr(_block, name) for name in __annotations__ if name not in globals()})
    __all__ = [*__annotations__, "attach_by_descriptors", "library_name", "reference_of", "session_of"]
