"""The real libraries: their arrays travel through shared memory, with nothing registered.

`MOVED` are objects to send, with the arrays that they consist of. Each is sent to a child and back: it comes back
equal, each of its arrays lies in shared memory, and the message itself is small.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

pytest.importorskip("pandas", reason="pandas and other large libraries are not installed: nox -s containers")

COUNT = 120_000  # every third byte of a column is beyond the inline limit, too
MESSAGE = 20_000  # bytes; each thing is some 150 000 or more


def need(module: str) -> Any:
    package = module.partition(".")[0]
    return pytest.importorskip(module, reason=f"{package} is not installed: nox -s containers")


def arrays_in(thing: Any, seen: set[int] | None = None) -> Iterator[np.ndarray]:
    """Every array in the attributes of *thing* and of what it holds, whatever their names."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | bytes):
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        if thing.nbytes > mp.get_inline_limit() and not thing.dtype.hasobject:
            yield thing
        return
    inside: list[Any] = []
    if isinstance(thing, dict):
        inside += thing.values()
    elif isinstance(thing, list | tuple | set):
        inside += thing
    inside += getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            inside.append(getattr(thing, name, None))
    for part in inside:
        yield from arrays_in(part, seen)


# ---- pandas ----------------------------------------------------------------------------------------------------------


def mixed_frame() -> Any:
    pandas = need("pandas")
    n = np.arange(COUNT)
    return pandas.DataFrame(
        {
            "i": n,
            "j": n[::-1],
            "f": n / 3,
            "g": np.where(n % 5, n, np.nan),
            "b": n % 2 == 0,
            "small": n.astype("i2"),
            "when": pandas.date_range("2020-01-01", periods=COUNT, freq="s"),
            "zone": pandas.date_range("2020-01-01", periods=COUNT, freq="s", tz="UTC"),
            "took": pandas.to_timedelta(n, unit="s"),
            "kind": pandas.Categorical.from_codes(n % 3, ["a", "b", "c"]),
            "maybe": pandas.array(np.where(n % 7, n, 0), dtype="Int64"),
        }
    )


def concatenated() -> Any:
    frame = mixed_frame()[["i", "f", "b"]]
    return need("pandas").concat([frame, frame + 1, frame.iloc[::2]])


def with_levels() -> Any:
    pandas = need("pandas")
    index = pandas.MultiIndex.from_product([range(COUNT // 10), range(10)], names=["outer", "inner"])
    return pandas.DataFrame({"x": np.arange(COUNT / 1.0)}, index=index)


FRAMES: dict[str, Callable[[], Any]] = {
    "mixed": mixed_frame,
    "a slice of rows": lambda: mixed_frame().iloc[100:-100],
    "every second row": lambda: mixed_frame().iloc[::2],
    "some columns": lambda: mixed_frame()[["f", "i", "kind"]],
    "chosen rows": lambda: mixed_frame().query("i % 3 == 0"),
    "concatenated": concatenated,
    "one block, transposed": lambda: need("pandas").DataFrame(np.arange(3.0 * COUNT).reshape(3, COUNT)).T,
    "two levels of index": with_levels,
    "column by column": lambda: mixed_frame()[["i", "f"]].assign(k=lambda f: f.i * 2, m=lambda f: f.f + 1),
}
SERIES: dict[str, Callable[[], Any]] = {
    name: (lambda name=name: mixed_frame()[name]) for name in ("i", "f", "when", "zone", "took", "kind", "maybe")
}
SERIES["a slice"] = lambda: mixed_frame()["f"].iloc[10:-10:2]


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_a_data_frame_is_moved_whatever_its_blocks(echo: Carrier, make: Callable) -> None:
    sent = make()
    received = is_moved(echo, sent)
    need("pandas").testing.assert_frame_equal(received, sent)
    assert list(received.dtypes) == list(sent.dtypes)


@pytest.mark.parametrize("make", SERIES.values(), ids=SERIES)
def test_a_series_is_moved(echo: Carrier, make: Callable) -> None:
    sent = make()
    need("pandas").testing.assert_series_equal(is_moved(echo, sent), sent)


def test_a_received_frame_can_be_changed_and_the_senders_stays(echo: Carrier) -> None:
    sent = mixed_frame()
    received = echo.call(tasks.echo, sent)
    received["f"] = received["f"] * 2
    received.loc[5, "i"] = -1
    assert (received.loc[5, "i"], received.loc[9, "f"]) == (-1, 6)
    need("pandas").testing.assert_frame_equal(sent, mixed_frame())


def test_a_frame_over_a_shared_array_uses_it_on_both_sides(echo: Carrier) -> None:
    pandas = need("pandas")
    array = mp.shared.zeros((COUNT, 3))
    frame = pandas.DataFrame(array, columns=["a", "b", "c"], copy=False)
    before = mp.memory_stats()["copied_bytes"]
    echo.call(tasks.keep, frame)
    array[7] = 1, 2, 3
    (received,) = echo.again(tasks.recall)
    assert received.loc[7].tolist() == [1, 2, 3]
    assert mp.memory_stats()["copied_bytes"] == before


def test_text_columns_travel_as_their_dtype_does(echo: Carrier) -> None:
    pandas = need("pandas")
    words = [f"word {i}" for i in range(COUNT)]
    for dtype in ("object", "string[python]"):
        sent = pandas.Series(words, dtype=dtype)
        pandas.testing.assert_series_equal(echo.call(tasks.echo, sent), sent)
    need("pyarrow")
    sent = pandas.Series(words, dtype="string[pyarrow]")
    before = mp.memory_stats()["copied_bytes"]
    message = ForkingPickler.dumps(sent)
    assert len(message) < MESSAGE
    assert mp.memory_stats()["copied_bytes"] > before + sum(map(len, words))
    pandas.testing.assert_series_equal(ForkingPickler.loads(message), sent)
    pandas.testing.assert_series_equal(echo.call(tasks.echo, sent), sent)


# ---- SciPy -----------------------------------------------------------------------------------------------------------

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]


@pytest.mark.filterwarnings("ignore:Constructing a DIA matrix")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_sparse_arrays_and_matrices_of_every_format_are_moved(echo: Carrier, form: str, kind: str) -> None:
    sparse = need("scipy.sparse")
    size = 100 if form in ("dok", "lil") else 400
    dense = np.random.default_rng(1).random((size, size))
    dense[dense < 0.5] = 0
    sent = getattr(sparse, f"{form}_{kind}")(dense)
    # The last two stand on dictionaries and lists of Python numbers.
    received = echo.call(tasks.echo, sent) if form in ("dok", "lil") else is_moved(echo, sent)
    assert type(received) is type(sent)
    assert np.array_equal(received.toarray(), dense)


# ---- scikit-learn ----------------------------------------------------------------------------------------------------

ESTIMATORS = {
    "linear": "linear_model.Ridge",
    "neighbours": "neighbors.KNeighborsRegressor",
    "trees": "ensemble.RandomForestRegressor",
    "nystroem": "kernel_ridge.KernelRidge",
}


@pytest.mark.parametrize("path", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_estimator_is_moved_and_predicts_the_same(echo: Carrier, path: str) -> None:
    need("sklearn")
    module, name = path.split(".")
    kind = getattr(importlib.import_module(f"sklearn.{module}"), name)
    x = np.random.default_rng(2).random((500, 20))
    model = kind(**({"n_estimators": 5} if "Forest" in name else {})).fit(x, x.sum(axis=1))
    before = mp.memory_stats()["copied_bytes"]
    received = echo.call(tasks.echo, model)
    other = x.copy()  # for x itself, a model that has it takes another function of BLAS, with another last bit
    assert np.array_equal(received.predict(other), model.predict(other))
    large = sum(array.nbytes for array in arrays_in(model))
    assert mp.memory_stats()["copied_bytes"] >= before + large
    assert all(mp.is_shared(array) for array in arrays_in(received))


# ---- the others ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_xarray_is_moved(echo: Carrier) -> None:
    xarray = need("xarray")
    sent = xarray.Dataset(
        {"t": (("x", "y"), np.arange(2.0 * COUNT).reshape(-1, 2)), "n": ("x", np.arange(COUNT))},
        coords={"x": np.arange(COUNT) * 10},
        attrs={"unit": "K"},
    )
    assert is_moved(echo, sent).identical(sent)
    assert is_moved(echo, sent["t"][::2]).identical(sent["t"][::2])


def test_arrow_tables_are_moved_and_sent_on_without_a_copy(echo: Carrier) -> None:
    pyarrow = need("pyarrow")
    sent = pyarrow.table({"n": np.arange(COUNT), "text": [f"word {i}" for i in range(COUNT)]})
    before = mp.memory_stats()["copied_bytes"]
    message = ForkingPickler.dumps(sent)
    assert len(message) < MESSAGE
    copied = mp.memory_stats()["copied_bytes"] - before
    assert copied == sum(len(b) for column in sent.columns for b in column.chunk(0).buffers() if b is not None)
    received = ForkingPickler.loads(message)
    assert received.equals(sent)
    assert echo.call(tasks.echo, received).equals(sent)
    assert mp.memory_stats()["copied_bytes"] == before + copied
    assert echo.call(tasks.echo, sent.slice(5, 100)).equals(sent.slice(5, 100))


@dataclass
class Experiment:
    name: str
    runs: dict[str, Any]


def test_objects_of_one_library_inside_another_are_moved(echo: Carrier) -> None:
    frame, sparse = mixed_frame(), need("scipy.sparse")
    matrix = sparse.random_array((300, 300), density=0.5, format="csr", rng=np.random.default_rng(3))
    sent = Experiment("a", {"frames": [frame, {"deep": (matrix, frame["f"])}]})
    received = is_moved(echo, sent)
    need("pandas").testing.assert_frame_equal(received.runs["frames"][0], frame)
    assert np.array_equal(received.runs["frames"][1]["deep"][0].toarray(), matrix.toarray())


def is_moved(echo: Carrier, sent: Any) -> Any:
    """Return the object from the child; check that its large arrays are in shared memory, not in the message."""
    before = mp.memory_stats()["copied_bytes"]
    message = ForkingPickler.dumps(sent)
    assert len(message) < MESSAGE, "something large went by pickle"
    assert mp.memory_stats()["copied_bytes"] > before
    ForkingPickler.loads(message)
    received = echo.call(tasks.echo, sent)
    private = [f"{a.dtype}{a.shape}" for a in arrays_in(received) if not mp.is_shared(a)]
    assert private == []
    return received
