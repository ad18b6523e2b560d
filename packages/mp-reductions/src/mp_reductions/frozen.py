"""Frozen objects: one read-only copy of a nested Python object in shared memory, for all processes.

Note [Layout of a frozen object]
--------------------------------
A block holds *nodes* and *records*, all at multiples of 8 bytes; numbers are 64 bits wide.

    node      kind: list, tuple or dict; count; the offsets of its records, and the end of the last one
              a dict has, besides, its hashes in ascending order, the row of each, and the offsets of its keys
    record    kind, then   a pickle
                           a pickle with buffers: their number, offset and length of each, the pickle
                           the offset of a node

Each item of a node is a record, and reading it unpickles that record: so an access costs as much as the item is large.
A list, tuple or dict becomes a node if it is the outermost, has more than `LARGE` items, or contains a node. The memory
of a large array (or another object that offers pickle a buffer) is not copied on reading: it is a view of the block.

Note [Hashes]
-------------
Python's hashes of text differ between processes, so a frozen dict uses its own. Numbers that are equal must have one
hash whatever their type, and Python's hash of numbers does not depend on the process.
"""

from __future__ import annotations

import pickle
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from mp_core.memory.block import Block, allocate
from mp_core.sharing.backend import by_value

LARGE = 256  # items
SMALL = 1024  # bytes of a buffer that stays in its pickle
_LIST, _TUPLE, _DICT = range(3)
_PLAIN, _BUFFERS, _NODE = range(3)
_number = struct.Struct("=q")
_KINDS: dict[Any, int] = {list: _LIST, tuple: _TUPLE, dict: _DICT}


def frozen(obj: Any) -> Any:
    """
    Copy a nested object once into shared memory, read-only, for all processes that receive or inherit it.

    Use it for large metadata, such as a list of a million annotations, that every worker reads: all workers together
    need the memory of one copy. A plain list is copied page by page in forked workers, because reading an object
    changes its reference count.

    Indexing, iteration and look-up make ordinary Python objects from the copy; changing them does not change it. Arrays
    of 1 KiB and more are read-only views of the shared memory. A slice, and a nested list, tuple or dict of more than
    256 items, is frozen again.

    Parameters
    ----------
    obj : list, tuple or dict
        It may contain everything that can be pickled. The keys of a dict of more than 256 items, and of the outermost,
        are None, str, bytes, numbers or tuples of these.

    Returns
    -------
    collections.abc.Sequence or collections.abc.Mapping
        A sequence for a list or a tuple, a mapping for a dict. Sending it sends a handle. Close nothing: its memory is
        freed when no process uses it.

    Raises
    ------
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        *obj* is no list, tuple or dict, or has a key of another type.

    Examples
    --------
    >>> notes = mp.shared.frozen([{"id": k, "box": [k, k + 1]} for k in range(1000)])
    >>> notes[3], len(notes[10:20])
    ({'id': 3, 'box': [3, 4]}, 10)
    """
    if type(obj) not in _KINDS:
        raise TypeError(f"frozen takes a list, a tuple or a dict, not {type(obj).__name__}")
    writer = _Writer()
    root = writer.node(obj)
    block = allocate(len(writer.data), zeroed=False)
    memoryview(block)[:] = writer.data
    return rebuild_frozen(block, root, None)


def rebuild_frozen(memory: Block | bytes, root: int, rows: tuple[int, int, int] | None) -> Any:
    """Rebuild a frozen object over *memory*. A handle that reaches beyond it is a `ValueError`."""
    return _open(_Memory(memory), root, rows)


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def node(self, obj: Any) -> int:
        kind = _KINDS[type(obj)]
        values = list(obj.values()) if kind == _DICT else obj
        offsets = [self.record(value) for value in values]
        parts = [[kind, len(offsets)], offsets]
        if kind == _DICT:
            order = sorted((stable_hash(key), row) for row, key in enumerate(obj))
            parts += [[h for h, _ in order], [row for _, row in order], [self.record_of_leaf(key) for key in obj]]
        self.align()
        start = len(self.data)
        for part in parts:
            self.data += struct.pack(f"={len(part)}q", *part)
        return start

    def align(self) -> None:
        self.data += bytes(-len(self.data) % 8)

    def record(self, obj: Any) -> int:
        if _is_node(obj):
            root = self.node(obj)
            return self.put(_NODE, _number.pack(root))
        return self.record_of_leaf(obj)

    def record_of_leaf(self, obj: Any) -> int:
        buffers: list[pickle.PickleBuffer] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            small = buffer.raw().nbytes < SMALL
            if not small:
                buffers.append(buffer)
            return small

        message = pickle.dumps(obj, 5, buffer_callback=stays)
        if not buffers:
            return self.put(_PLAIN, message)
        places = [self.put_buffer(buffer.raw()) for buffer in buffers]
        numbers = [len(places), *(number for place in places for number in place)]
        return self.put(_BUFFERS, struct.pack(f"={len(numbers)}q", *numbers) + message)

    def put(self, kind: int, content: bytes) -> int:
        self.align()
        start = len(self.data)
        self.data += struct.pack("=ii", kind, 0) + _number.pack(len(content)) + content
        return start

    def put_buffer(self, raw: memoryview) -> tuple[int, int]:
        self.data += bytes(-len(self.data) % 64)
        start = len(self.data)
        self.data += raw
        return start, raw.nbytes


def _is_node(obj: Any) -> bool:
    if type(obj) not in _KINDS:
        return False
    if len(obj) > LARGE:
        return True
    return any(map(_is_node, obj.values() if type(obj) is dict else obj))


def stable_hash(key: Any) -> int:
    """
    Return a hash that is the same in all processes, and for equal keys.

    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    """
    if key is None:
        return 0
    if isinstance(key, str | bytes):
        import hashlib  # few programs freeze a dict, and all that send arrays import this module

        data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else b"\0" + key
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
    if isinstance(key, int | float | complex | np.number) or type(key).__module__ in ("decimal", "fractions"):
        return hash(key)
    if isinstance(key, tuple):
        return hash(tuple(map(stable_hash, key)))
    raise TypeError(
        f"a key of a frozen dict is None, str, bytes, a number or a tuple of these, not {type(key).__name__}"
    )


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Memory:
    """The bytes of all nodes of one frozen object, which share it."""

    def __init__(self, source: Block | bytes) -> None:
        self.source = source
        view: Any = memoryview(source)
        self.bytes: memoryview = view.toreadonly()
        self.numbers = self.bytes[: len(self.bytes) // 8 * 8].cast("q")

    def part(self, offset: int, nbytes: int) -> memoryview:
        part = self.bytes[offset : offset + nbytes]
        if offset < 0 or nbytes < 0 or len(part) != nbytes:
            raise ValueError(f"the handle of a frozen object is damaged: {nbytes} bytes at {offset}")
        return part

    def column(self, offset: int, count: int) -> memoryview:
        return self.part(offset, 8 * count).cast("q")

    def load(self, offset: int) -> Any:
        numbers, at = self.numbers, offset >> 3
        kind, start, nbytes = numbers[at] & 0xFFFFFFFF, offset + 16, numbers[at + 1]
        if kind == _PLAIN:
            return pickle.loads(self.bytes[start : start + nbytes])
        if kind == _NODE:
            return _open(self, numbers[at + 2], None)
        count = numbers[at + 2]
        places = self.column(start + 8, 2 * count)
        buffers = [self.part(places[2 * k], places[2 * k + 1]) for k in range(count)]
        skipped = 8 * (1 + 2 * count)
        return pickle.loads(self.part(start + skipped, nbytes - skipped), buffers=buffers)


def _open(memory: _Memory, root: int, rows: tuple[int, int, int] | None) -> Any:
    kind, count = memory.column(root, 2)
    if kind not in (_LIST, _TUPLE, _DICT):
        raise ValueError(f"the handle of a frozen object is damaged: no object begins at {root}")
    if kind == _DICT:
        return FrozenDict(memory, root, count)
    return FrozenList(memory, root, range(count) if rows is None else range(*rows))


def _reduced(memory: _Memory, root: int, rows: tuple[int, int, int] | None) -> tuple[Callable[..., Any], Any]:
    # A message by value has no blocks.
    source = bytes(memory.bytes) if by_value() else memory.source
    return rebuild_frozen, (source, root, rows)


class FrozenList(Sequence[Any]):
    """A frozen list or tuple, or a slice of one; `frozen` makes it."""

    __slots__ = ("_memory", "_offsets", "_root", "_rows")

    def __init__(self, memory: _Memory, root: int, rows: range) -> None:
        count = memory.numbers[(root >> 3) + 1]
        if rows and not (min(rows[0], rows[-1]) >= 0 and max(rows[0], rows[-1]) < count):
            raise ValueError(f"the handle of a frozen object is damaged: it has {count} items")
        self._memory, self._root, self._rows = memory, root, rows
        self._offsets = memory.column(root + 16, count)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> FrozenList: ...
    def __getitem__(self, index: int | slice) -> Any:
        try:
            rows = self._rows[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range: the frozen list has {len(self)} items") from None
        if isinstance(rows, range):
            return FrozenList(self._memory, self._root, rows)
        return self._memory.load(self._offsets[rows])

    def __iter__(self) -> Iterator[Any]:
        load, offsets = self._memory.load, self._offsets
        return (load(offsets[row]) for row in self._rows)

    def __repr__(self) -> str:
        return f"<frozen list of {len(self)} items>"

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        rows = self._rows
        return _reduced(self._memory, self._root, (rows.start, rows.stop, rows.step))


class FrozenDict(Mapping[Any, Any]):
    """A frozen dict; `frozen` makes it."""

    __slots__ = ("_hashes", "_keys", "_memory", "_offsets", "_order", "_root")

    def __init__(self, memory: _Memory, root: int, count: int) -> None:
        self._memory, self._root = memory, root
        columns = (memory.column(root + 16 + 8 * count * k, count) for k in range(4))
        self._offsets, self._hashes, self._order, self._keys = columns

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, key: Any) -> Any:
        hash(key)  # raises for a key that no dict can have
        try:
            wanted = stable_hash(key)
        except TypeError:
            wanted = hash(key)  # it may be equal to a number, as NumPy's booleans are
        hashes = self._hashes
        at = bisect_left(hashes, wanted)
        while at < len(hashes) and hashes[at] == wanted:
            row = self._order[at]
            if self._memory.load(self._keys[row]) == key:
                return self._memory.load(self._offsets[row])
            at += 1
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        load = self._memory.load
        return (load(offset) for offset in self._keys)

    def __repr__(self) -> str:
        return f"<frozen dict of {len(self)} items>"

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        return _reduced(self._memory, self._root, None)
