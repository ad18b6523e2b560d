"""polars: the columns of frames and series travel by Arrow's C stream.

polars offers all chunks of a column as one, as its pickle does. A column of Python objects travels by pickle, which
refuses it; so does one of a type that the program has registered with polars.
"""

from __future__ import annotations

import polars

from mp_core.messages import arrow_streams
from mp_core.system import reducers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def init_reductions() -> None:
    """Register the reducers, unless the program has registered its own."""
    reducers.offer(polars.DataFrame, lambda frame: _reduce(frame, frame.get_columns()))
    reducers.offer(polars.Series, lambda series: _reduce(series, [series]))


def _reduce(thing: Any, columns: list[Any]) -> Any:
    packed = arrow_streams.pack(thing) if all(_is_plain(column.dtype) for column in columns) else None
    if packed is None:
        return thing.__reduce_ex__(4)
    ascending = [i for i, column in enumerate(columns) if column.flags["SORTED_ASC"]]
    descending = [i for i, column in enumerate(columns) if column.flags["SORTED_DESC"]]
    return rebuild, (type(thing), packed, ascending, descending)


def _is_plain(dtype: Any) -> bool:
    inside = [field.dtype for field in getattr(dtype, "fields", ())]
    if hasattr(dtype, "inner"):
        inside.append(dtype.inner)
    return dtype != polars.Object and not isinstance(dtype, _EXTENSION) and all(map(_is_plain, inside))


_EXTENSION = getattr(polars, "BaseExtension", ())  # since polars 1.36


def rebuild(kind: Any, packed: arrow_streams.Packed, ascending: list[int], descending: list[int]) -> Any:
    """Return the frame or series, with the flags of its sorted columns."""
    made = kind(arrow_streams.Stream(*packed))
    for places, falling in ((ascending, False), (descending, True)):
        for i in places:
            if kind is polars.Series:
                made = made.set_sorted(descending=falling)
            else:
                made.replace_column(i, made.to_series(i).set_sorted(descending=falling))
    return made
