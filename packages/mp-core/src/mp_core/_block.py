"""The hand-written module of libshm under its own name: pickles name its functions.

The compiled module is in the file of `_libshm`, where the import system does not look for it. A child whose first
message has a block imports this file, and the entry of `sys.modules`, which `compiled` sets, takes its place.
"""

from mp_core.sharing import backend  # noqa: F401

__all__: list[str] = []
