"""A change of the program reaches its workers also behind an alias, a time, a slice or an index, and into a frame."""

from __future__ import annotations

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")

BEHIND = """
import datetime, functools, operator, sys, typing
import mp_all as mp
import numpy as np

T = typing.TypeVar("T")
offset = 1

class Box(typing.Generic[T]):
    def __init__(self, value): self.value = value
    def get(self): return self.value + offset
class Items(list):
    def go(self): return offset
class Zone(datetime.tzinfo):
    def utcoffset(self, when): return datetime.timedelta(hours=offset)
    def dst(self, when): return None
    def tzname(self, when): return None
class Number:
    def __index__(self): return offset

def add(x): return x + offset

Numbers, Some, Either = Box[int], list[Items], Items | int
when, clock = datetime.datetime(2020, 1, 1, tzinfo=Zone()), datetime.time(1, tzinfo=Zone())
part = slice(Number())
add_all = np.vectorize(add)
add_all([1])
go = operator.methodcaller("go")

def of_an_alias(): return Numbers(0).get()
def of_a_list(): return Some.__args__[0]().go()
def of_either(): return Either.__args__[0]().go()
def of_a_date(): return when.utcoffset()
def of_a_time(): return clock.utcoffset()
def of_a_slice(): return [1, 2, 3, 4][part]
def of_all(): return add_all([1]).tolist()
def of_a_call(): return go(Items())
asked = [of_an_alias, of_a_list, of_either, of_a_date, of_a_time, of_a_slice, of_all, of_a_call]

if sys.version_info >= (3, 12):
    exec("type Alias = Items")
    def of_a_type(): return Alias.__value__().go()
    asked.append(of_a_type)
try:
    import pandas as pd
    index = pd.Index([add], dtype=object)
    def of_an_index(): return index[0](1)
    asked.append(of_an_index)
except ImportError:
    pass

with mp.get_context(sys.argv[1]).Pool(1) as pool:
    for offset in (1, 2, 3):
        for each in asked:
            assert pool.apply(each) == each(), (each, pool.apply(each), each())
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_changed_global_of_a_class_behind_another_object_reaches_the_workers(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=BEHIND)) == "as here\n"


FRAMES = """
import sys
import mp_all as mp
import pandas as pd

data, series = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), pd.Series([1, 2])
names, by_name = [data], {"data": data}
class Holder:
    frame = data
holder = Holder()
holder.own = series

def read():
    data["a"].sum(), series.sum(), names[0].describe(), by_name["data"].isna(), Holder.frame.sum(), holder.own.sum()
def ask():
    frames = data, names[0], by_name["data"], Holder.frame
    return [int(each["a"].sum()) for each in frames] + [int(series.sum()), int(holder.own.sum())]

with mp.get_context(sys.argv[1]).Pool(1, initializer=read) as pool:
    for number in (1, 2, 3):
        data = names[0] = by_name["data"] = Holder.frame = pd.DataFrame({"a": [number, 2], "b": ["x", "y"]})
        series = holder.own = pd.Series([number])
        assert pool.apply(ask) == ask(), (pool.apply(ask), ask())
        data.loc[0, "a"] += 10
        series.iloc[0] += 10
        assert pool.apply(ask) == ask(), (pool.apply(ask), ask())
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_frame_that_an_initializer_only_reads_is_the_programs(method: str) -> None:
    pytest.importorskip("pandas")
    assert succeeded(run_python("-", method, stdin=FRAMES)) == "as here\n"
