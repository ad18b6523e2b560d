"""`Buffers`: the large buffers of the tasks of one call, each of which goes to a node once.

Note [Arrays that several tasks have]
-------------------------------------
`starmap(f, [(array, 1), (array, 2), ...])` pickles the array for each task. Its memory is a buffer beside the pickle,
so a buffer that has been met before in the call is left out, and the task has its number:

    driver   pickle of (array, 2), buffer 7 --> Buffer(7, content) once a node, Tasks([(2, pickle, (7,))]) --> node
    node     copies the content into a file in memory --> a private mapping for each task, see Note [Private mappings]

- Only for `map` and `starmap`, which take all items before the first task: a generator of `imap` may fill one array
  anew for each item, and then each item has its own content.
- A buffer is the same if its memory is, and the object that owns that is the same and alive.
- A node keeps the last `KEPT` of them, and none after its owner or the call has ended.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from pickle import PickleBuffer
from typing import Any

LEAST = 64 * 1024  # bytes: a smaller buffer stays in the task's pickle
KEPT = 8  # buffers


class Buffers:
    """
    The numbers of the buffers, by the memory that they are of.

    *new_number* gives the next one, and *forgotten* is told of those that no task can need again after the one at hand.
    """

    def __init__(self, new_number: Callable[[], int], forgotten: Callable[[int], Any]) -> None:
        self._new_number, self._forgotten = new_number, forgotten
        self._known: dict[Any, int] = {}
        weakref.finalize(self, _forget, self._known, forgotten).atexit = False

    def numbers(self, buffers: Iterable[PickleBuffer]) -> dict[int, PickleBuffer]:
        """Return the buffers of a task by number, in order. Two of one memory in one task arrive as two copies."""
        numbered: dict[int, PickleBuffer] = {}
        for buffer in buffers:
            number = self._number(buffer)
            if number in numbered:
                number = self._number_for_once()
            numbered[number] = buffer
        return numbered

    def _number_for_once(self) -> int:
        number = self._new_number()
        self._forgotten(number)
        return number

    def _number(self, buffer: PickleBuffer) -> int:
        np = sys.modules.get("numpy")
        if np is None:
            return self._number_for_once()  # it is of no array
        with buffer.raw() as raw:
            owner: Any = raw.obj
            while type(owner) is np.ndarray and type(owner.base) is np.ndarray:
                owner = owner.base
            address = np.frombuffer(raw, np.uint8).__array_interface__["data"][0]
            key = id(owner), address, raw.nbytes, raw.readonly
        if key not in self._known:
            try:
                weakref.finalize(owner, _forget_one, self._known, key, self._forgotten).atexit = False
            except TypeError:  # it takes no weak reference, so that nobody would notice its end
                return self._number_for_once()
            self._known[key] = self._new_number()
        return self._known[key]


def _forget_one(known: dict[Any, int], key: Any, forgotten: Callable[[int], Any]) -> None:
    number = known.pop(key, None)
    if number is not None:
        forgotten(number)


def _forget(known: dict[Any, int], forgotten: Callable[[int], Any]) -> None:
    for key in list(known):
        _forget_one(known, key, forgotten)
