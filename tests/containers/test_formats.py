"""Types whose own pickle has all bytes in the message: polars by Arrow's C stream, JAX by NumPy; and NumPy's texts.

Each object arrives equal, and its bytes are in shared memory.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

COUNT = 100_000
MESSAGE = 20_000  # bytes


def need(module: str) -> Any:
    return pytest.importorskip(module, reason=f"{module} is not installed: nox -s containers")


@pytest.fixture(scope="module", autouse=True)
def polars_has_its_threads() -> None:
    """Let polars open what it keeps for its threads, which is no leak of a test."""
    if importlib.util.find_spec("polars"):
        every_type().lazy().filter(need("polars").col("true")).collect(engine="streaming")


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


# ---- polars ----------------------------------------------------------------------------------------------------------


def every_type() -> Any:
    pl = need("polars")
    n = range(50)
    moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=i) if i % 7 else None for i in n]
    columns = [
        *(pl.Series(str(kind), [i if i % 5 else None for i in n], dtype=kind) for kind in numbers(pl)),
        pl.Series("true", [i % 3 == 0 if i % 4 else None for i in n]),
        pl.Series("nothing", [None] * 50, dtype=pl.Null),
        pl.Series("text", [f"{i} is a text {'of some length ' * (i % 3)}" if i % 6 else None for i in n]),
        pl.Series("bytes", [b"\xff\x00" * i if i % 6 else None for i in n]),
        pl.Series("day", moments, dtype=pl.Datetime("us", "UTC")).dt.date(),
        pl.Series("moment", moments, dtype=pl.Datetime("us", "UTC")).dt.convert_time_zone("Europe/Zurich"),
        pl.Series("ns", [datetime(2024, 1, 1)] * 50, dtype=pl.Datetime("ns")),
        pl.Series("took", [timedelta(seconds=i) for i in n], dtype=pl.Duration("ms")),
        pl.Series("clock", [timedelta(seconds=i) for i in n], dtype=pl.Duration("ns")).cast(pl.Int64).cast(pl.Time),
        pl.Series("money", [Decimal(i) / 100 for i in n], dtype=pl.Decimal(20, 2)),
        pl.Series("kind", ["a", None, "c", "a", "b"] * 10, dtype=pl.Categorical),
        pl.Series("one of", ["x", "y", None, "x", "x"] * 10, dtype=pl.Enum(["x", "y", "never"])),
        pl.Series("list", [[i, None] * (i % 4) if i % 5 else None for i in n], dtype=pl.List(pl.Int32)),
        pl.Series("lists", [[["a"] * (i % 3), None] for i in n], dtype=pl.List(pl.List(pl.String))),
        pl.Series("array", [[i, i + 1] if i % 5 else None for i in n], dtype=pl.Array(pl.Int8, 2)),
        pl.Series("struct", [{"a": i, "b": {"c": str(i)}} if i % 5 else None for i in n]),
    ]
    return pl.DataFrame(columns)


def numbers(pl: Any) -> list[Any]:
    return [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.UInt8, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64]


FRAMES: dict[str, Callable[[], Any]] = {
    "every type": every_type,
    "many rows of every type": lambda: need("polars").concat([every_type()] * 300, rechunk=True),
    "several chunks": lambda: need("polars").concat([every_type()] * 3, rechunk=False),
    "a slice": lambda: every_type().slice(3, 11),
    "a slice of many": lambda: need("polars").concat([every_type()] * 300).slice(1003, 9001),
    "a slice of a slice": lambda: every_type().slice(3, 30).slice(9, 13),
    "every third row": lambda: every_type().gather_every(3),
    "no rows": lambda: every_type().clear(),
    "no columns": lambda: need("polars").DataFrame(),
    "rows without columns": lambda: need("polars").DataFrame(height=5),
    "strange names": lambda: need("polars").DataFrame({"": [1], "ü\n": [2], "x" * 9000: [3]}),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_a_polars_frame_and_its_series_arrive_equal(make: Callable[[], Any]) -> None:
    testing, sent = need("polars.testing"), make()
    received, by_pickle = there_and_back(sent), pickle.loads(pickle.dumps(sent))
    assert received.schema == sent.schema
    assert received.shape == sent.shape
    assert received.n_chunks() == by_pickle.n_chunks()
    testing.assert_frame_equal(received, sent)
    for series in sent:
        again = there_and_back(series)
        assert (again.dtype, again.name) == (series.dtype, series.name)
        testing.assert_series_equal(again, series)


def test_any_polars_frame_arrives_equal() -> None:
    testing, parametric = need("polars.testing"), need("polars.testing.parametric")
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(parametric.dataframes(max_cols=4, max_size=20, allow_null=True))
    def arrives(sent: Any) -> None:
        received = there_and_back(sent)
        assert received.schema == sent.schema
        testing.assert_frame_equal(received, sent)
        testing.assert_frame_equal(there_and_back(sent.slice(1, 9)), sent.slice(1, 9))

    arrives()


def test_a_polars_frame_goes_through_every_channel_by_one_copy(echo: Carrier) -> None:
    pl, testing = need("polars"), need("polars.testing")
    sent = pl.DataFrame({"x": np.arange(float(COUNT)), "text": [f"a text of the row {i}" for i in range(COUNT)]})
    before = mp.memory_stats()["copied_bytes"]
    message = ForkingPickler.dumps(sent)
    assert len(message) < MESSAGE
    assert sent.estimated_size() <= mp.memory_stats()["copied_bytes"] - before < 2 * sent.estimated_size()
    copied = mp.memory_stats()["copied_bytes"]
    testing.assert_frame_equal(ForkingPickler.loads(message), sent)
    assert mp.memory_stats()["copied_bytes"] == copied, "the receiver copies nothing"
    testing.assert_frame_equal(echo.call(tasks.echo, {"deep": [sent]})["deep"][0], sent)
    testing.assert_series_equal(echo.call(tasks.echo, sent["text"]), sent["text"])


def test_a_slice_of_a_polars_frame_sends_its_own_rows_only() -> None:
    pl = need("polars")
    texts = [f"a text that is longer than a view {i}" for i in range(COUNT)]
    frame = pl.DataFrame({"text": texts, "list": [[i, i] for i in range(COUNT)], "n": range(COUNT)})
    assert len(ForkingPickler.dumps(frame.slice(COUNT // 2 + 3, 20))) < MESSAGE
    assert len(ForkingPickler.dumps(frame.filter(pl.col("n") % 5000 == 7))) < MESSAGE
    assert there_and_back(frame.slice(COUNT // 2 + 3, 20)).rows() == frame.slice(COUNT // 2 + 3, 20).rows()
    assert there_and_back(frame.filter(pl.col("n") % 7 == 3)).rows() == frame.filter(pl.col("n") % 7 == 3).rows()


def test_the_receiver_of_a_polars_series_may_write_to_it_and_the_senders_stays() -> None:
    pl = need("polars")
    sent = pl.Series("x", np.arange(COUNT))
    first = there_and_back(sent)
    second = there_and_back(first)
    first[0] = -1
    assert (sent[0], first[0], second[0]) == (0, -1, 0)


def test_a_column_keeps_the_memory_of_its_polars_frame_and_the_last_one_frees_it() -> None:
    pl = need("polars")
    held = mp.memory_stats()["live_bytes"]
    column = there_and_back(pl.DataFrame({"x": np.arange(COUNT), "y": np.arange(COUNT)}))["y"]
    assert column.sum() == COUNT * (COUNT - 1) // 2
    assert mp.memory_stats()["live_bytes"] >= held + 16 * COUNT
    del column
    assert mp.memory_stats()["live_bytes"] == held


def test_polars_keeps_the_flags_of_sorted_columns() -> None:
    pl = need("polars")
    frame = pl.DataFrame({"up": [1, 2, 3], "none": [2, 1, 3], "down": [3, 2, 1]})
    frame = frame.with_columns(frame["up"].set_sorted(), frame["down"].set_sorted(descending=True))
    assert there_and_back(frame).flags == frame.flags
    assert there_and_back(frame["down"]).flags == frame["down"].flags


def test_python_objects_in_polars_are_refused_as_by_pickle() -> None:
    pl = need("polars")
    series = pl.Series("o", [object(), object()], dtype=pl.Object)
    for thing in (series, series.to_frame()):
        with pytest.raises(BaseException) as by_pickle:
            pickle.dumps(thing)
        with pytest.raises(type(by_pickle.value)):
            ForkingPickler.dumps(thing)


def test_a_polars_frame_travels_by_value_where_nothing_is_shared() -> None:
    pl, testing = need("polars"), need("polars.testing")
    frame = pl.DataFrame({"x": np.arange(COUNT)})
    mp.set_sharing(False)
    try:
        message = ForkingPickler.dumps(frame)
    finally:
        mp.set_sharing(True)
    testing.assert_frame_equal(pickle.loads(message), frame)
    assert len(message) > 8 * COUNT


def test_a_damaged_layout_is_an_error() -> None:
    pl = need("polars")
    from mp_core.messages import arrow_streams

    layout, memory = arrow_streams.pack(pl.DataFrame({"x": [1, 2], "t": ["a", None]})) or (b"", b"")
    for end in range(0, len(layout), 8):
        with pytest.raises(Exception, match="damaged"):
            pl.DataFrame(arrow_streams.Stream(layout[:end], memory))
    with pytest.raises(Exception, match="damaged"):
        pl.DataFrame(arrow_streams.Stream(layout, memory[:8]))


def test_a_programs_own_reducer_of_polars_is_kept() -> None:
    need("polars")
    code = """if True:
        import multiprocessing.reduction as r, sys
        import polars
        r.ForkingPickler.register(polars.Series, lambda s: (len, ("own",)))
        import mp_all
        print(r.ForkingPickler.loads(r.ForkingPickler.dumps(polars.Series([1]))))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "3\n"


def test_neither_polars_nor_jax_is_imported_by_us() -> None:
    names = ("polars", "jax", "mp_core.messages.formats")
    code = f"import mp_all, numpy, sys; print([name for name in {names} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"


# ---- other readers of Arrow ------------------------------------------------------------------------------------------


def test_arrow_types_with_offsets_and_dictionaries_arrive_equal() -> None:
    pa = need("pyarrow")
    from mp_core.messages import arrow_streams

    n = range(1000)
    table = pa.table(
        {
            "text": [f"text {i}" if i % 3 else None for i in n],
            "long": pa.array([b"x" * (i % 50) for i in n], pa.large_binary()),
            "list": pa.array([[i] * (i % 3) if i % 5 else None for i in n], pa.list_(pa.int16())),
            "map": pa.array([[("k", i)] for i in n], pa.map_(pa.string(), pa.int32())),
            "fixed": pa.array([b"abc"] * 1000, pa.binary(3)),
            "dictionary": pa.array(["a", "b", None, "a"] * 250).dictionary_encode(),
            "bool": pa.array([i % 2 == 0 for i in n]),
            "struct": pa.array([{"a": i, "b": [str(i)]} for i in n]),
            "decimal": pa.array([Decimal(i) for i in n], pa.decimal256(50, 3)),
        }
    ).replace_schema_metadata({"made": "here"})
    for sent in (table, table.slice(13, 700), table.slice(5, 0), pa.concat_tables([table.slice(3, 9), table])):
        packed = arrow_streams.pack(sent)
        assert packed is not None
        received = pa.table(arrow_streams.Stream(*pickle.loads(ForkingPickler.dumps(packed))))
        received.validate(full=True)
        assert received.equals(sent, check_metadata=True)
        assert len(received.to_batches()) == len(sent.to_batches())
    assert arrow_streams.pack(pa.table({"runs": pa.RunEndEncodedArray.from_arrays([2, 5], [1, 2])})) is None


# ---- JAX -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jnp() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return need("jax.numpy")


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "complex64", "uint16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (300, 500)])
def test_a_jax_array_arrives_equal(jnp: Any, dtype: str, shape: tuple[int, ...]) -> None:
    sent = (jnp.arange(int(np.prod(shape))) % 5).reshape(shape).astype(dtype)
    received = there_and_back(sent)
    assert (type(received), received.dtype, received.shape) == (type(sent), sent.dtype, sent.shape)
    assert np.asarray(received).tobytes() == np.asarray(sent).tobytes()


def test_a_jax_array_goes_by_one_copy_and_is_the_memory_that_arrived(jnp: Any) -> None:
    sent = jnp.arange(COUNT * 3, dtype="float32")
    before = mp.memory_stats()["copied_bytes"]
    message = ForkingPickler.dumps({"x": sent})
    assert len(message) < 1000
    assert mp.memory_stats()["copied_bytes"] - before == sent.nbytes
    received = ForkingPickler.loads(message)["x"]
    assert mp.is_shared(np.asarray(received))
    assert (received == sent).all()


def test_a_jax_array_keeps_whether_its_dtype_is_weak(jnp: Any) -> None:
    for sent in (jnp.asarray(2.0), jnp.asarray(2.0, dtype="float32"), jnp.ones(COUNT)):
        assert there_and_back(sent).aval == sent.aval


def test_a_received_jax_array_that_is_donated_does_not_change_the_senders(jnp: Any) -> None:
    import jax

    first = there_and_back(jnp.zeros(COUNT))
    second = there_and_back(first)
    changed = jax.jit(lambda x: x + 1, donate_argnums=0)(second)
    assert changed[0] == 1
    assert np.asarray(first)[0] == 0


# ---- NumPy's texts ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="StringDType is of NumPy 2")
@pytest.mark.parametrize("options", [{}, {"na_object": None}, {"na_object": float("nan")}, {"coerce": False}], ids=str)
def test_numpys_texts_of_any_length_arrive_with_their_missing_values(echo: Carrier, options: dict[str, Any]) -> None:
    texts: list[Any] = ["", "short", "a text that has no room in its own element " * 3, "ü" * 300] * 2000
    if "na_object" in options:
        texts[::7] = [options["na_object"]] * len(texts[::7])
    sent = np.array(texts, dtype=np.dtypes.StringDType(**options)).reshape(2, -1)
    for array in (sent, sent[:, ::3], sent[0]):
        received = echo.call(tasks.echo, array)
        assert received.shape == array.shape
        assert repr(received.dtype) == repr(array.dtype)
        for there, here in zip(received.ravel().tolist(), array.ravel().tolist(), strict=True):
            assert there == here or (there is here is None) or (there != there and here != here)
