"""JAX: arrays travel as NumPy arrays do, and the receiver's array lies in the memory that arrived.

JAX's own pickle has the bytes in the message. Both ways an array of a GPU is copied to the CPU's memory first.
"""

from __future__ import annotations

import jax
import numpy as np

from mp_core.sharing import backend
from mp_core.system import reducers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def init_reductions() -> None:
    """Register the reducer. The class of arrays has no public name; making one would start JAX's backend."""
    reducers.of_subclasses(jax.Array, lambda kind: _reduce if kind.__name__ == "ArrayImpl" else None)


def _reduce(array: Any) -> Any:
    if backend.by_value():
        return array.__reduce__()
    return rebuild, (np.asarray(array), array.aval.weak_type)


def rebuild(memory: Any, weak_type: bool) -> Any:
    """Return the array of the bytes in *memory*, on the default device."""
    array = jax.device_put(memory)
    array.aval = array.aval.update(weak_type=weak_type)
    return array
