"""Objects for workers that have not imported the main module: functions and classes of ``__main__`` travel by value.

They are pickled by cloudpickle, with multiprocessing's reducers for arrays and all else that is registered. That pickle
is a part of the pool's own message, so a message that fails releases the memory of both.
"""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import numpy as np

from mp_all._inputs import Inputs
from mp_core.memory.mapped_buffers import MappedBuffer

try:
    import cloudpickle
except ImportError:  # joblib before 1.6 has its own copy
    from joblib.externals import cloudpickle

_reducers: dict[type, Callable[..., Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap(_reducers, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: io.BytesIO, inputs: Inputs | None, held: list[MappedBuffer]) -> None:
        super().__init__(file)
        self._inputs, self._held = inputs, held

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is np.ndarray:
            found = None if self._inputs is None else self._inputs.reduce(thing, self._held)
            return NotImplemented if found is None else found
        return super().reducer_override(thing)


class Sent:
    """An object that is pickled by `_Pickler`, and arrives as itself."""

    def __init__(self, thing: Any, inputs: Inputs | None = None) -> None:
        self.thing, self.inputs = thing, inputs
        self.held: list[MappedBuffer] = []

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        _Pickler(file, self.inputs, self.held).dump(self.thing)
        return cloudpickle.loads, (file.getvalue(),)
