"""What forked workers have of a program without a file: a message names it, or sends all of it by value."""

from __future__ import annotations

import array
import contextvars
import gc
import io
import itertools
import math
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripts import run_python, succeeded

from mp_core.messages import contents
from mp_core.messages.contents import Contents
from mp_core.sharing.portable import looks

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

OWN = """
import os
import signal

import mp_all as mp
import numpy as np

MISSING = object()
pid = os.getpid()


class Table(dict):
    def __reduce__(self):
        raise RuntimeError("it travels")


class Model:
    def __init__(self):
        self.weights = np.arange(1 << 18, dtype="f8").reshape(512, 512)

    def __getstate__(self):
        raise RuntimeError("it travels")


table = Table((i, MISSING if i % 2 else i) for i in range(5000))
model = Model()


def look(i):
    return table[i] is MISSING


def use(i):
    return look(i), float(model.weights[0, i])


def kill(i):
    if os.getpid() != pid and i == 0:
        os.kill(os.getpid(), signal.SIGKILL)


expected = [(bool(i % 2), float(i)) for i in range(40)]
context = mp.get_context("fork")
with context.Pool(2) as pool:
    assert pool.map(use, range(40)) == expected
    assert list(pool.imap(use, range(40))) == expected
    assert pool.apply(use, (3,)) == expected[3]
    assert [each.get() for each in [pool.apply_async(use, (i,)) for i in range(40)]] == expected
    try:
        pool.apply(kill, (0,))
    except mp.ProcessError:
        pass
    assert pool.map(use, range(40), chunksize=1) == expected  # a later worker
with context.Pool(2, maxtasksperchild=1) as pool:
    assert pool.map(use, range(6), chunksize=1) == expected[:6]
with mp.ProcessPoolExecutor(2, mp_context=context) as executor:
    assert list(executor.map(use, range(40))) == expected
    assert [each.result() for each in [executor.submit(use, i) for i in range(40)]] == expected
print("done")
"""


def test_a_forked_worker_uses_its_own_large_globals() -> None:
    assert succeeded(run_python("-", stdin=OWN)) == "done\n"


LIBRARIES = {
    "frames": """
import pandas as pd

frame = pd.DataFrame(
    {
        "when": pd.date_range("2020", periods=1000),
        "there": pd.date_range("2020", periods=1000, tz="UTC"),
        "kind": pd.Categorical(["a", "b"] * 500),
        "text": pd.array(["x", None] * 500, "string"),
        "number": pd.array([1, None] * 500, "Int64"),
        "took": pd.to_timedelta(range(1000), unit="s"),
        "month": pd.period_range("2020", periods=1000, freq="M"),
    }
)
column = pd.Series(range(1000), index=frame["when"])
days, words, kinds = frame["when"].copy(), pd.Series(["a", "b"]), frame["kind"].copy()


def read():
    return str(frame.iloc[-1].tolist()), int(column.iloc[-1]), len(days), len(words), len(kinds)


def use():
    frame["when"].dt.year, frame.describe(), frame.groupby("kind", observed=True).size(), frame[frame.number == 1]
    days.dt.year, words.str.upper(), kinds.cat.codes
    repr(frame), frame.loc[3:5], frame.to_dict(), frame.isna(), [*frame.itertuples()], column.sum(), column.unique()


def change():
    frame.loc[999, "kind"] = "a"
""",
    "tensors": """
import torch

torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200)).eval()
offset = torch.ones(200, dtype=torch.bfloat16)


deep = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)]).eval()


def read():
    with torch.no_grad():
        return (network(torch.ones(1, 300)) + offset).sum().item() + deep(torch.ones(1, 2)).sum().item()


def use():
    network(torch.zeros(3, 300)), network.state_dict(), offset.sum()


def change():
    with torch.no_grad():
        deep[-1].bias.fill_(5.0)
""",
    "files, buffers and names": """
import array
import enum
import pathlib
import struct

class Rights(enum.Flag):
    READ = 1
    WRITE = 2

path = pathlib.Path("a", "b")

numbers = array.array("d", range(100000))
words = open(__import__("os").devnull, "w")
record = struct.Struct("i")


def read():
    return numbers[-1] + len(path.name) + (Rights.READ | Rights.WRITE).value + words.write("") + record.size


def use():
    words.write("a"), sum(numbers), hash(path), str(path), path.suffix, Rights.READ | Rights.WRITE, ~Rights.READ


def change():
    numbers.append(7)
""",
}
LIBRARY = """
import mp_all as mp

calls = []


def worker_calls(number):
    calls.append(number)
    return read(), len(calls)


pool = mp.get_context("fork").Pool(1)
assert pool.map(worker_calls, range(3), chunksize=1)[-1] == (read(), 3)
use()
assert [pool.apply(worker_calls, (i,)) for i in range(2)] == [(read(), 4), (read(), 5)], "it travels"
before = read()
change()
assert read() != before
print(pool.apply(worker_calls, (0,)) == (read(), 1))
pool.close()
pool.join()
"""


@pytest.mark.parametrize("what", LIBRARIES)
def test_what_a_library_does_when_its_object_is_used_is_no_change(what: str) -> None:
    for module in {"frames": ["pandas"], "tensors": ["torch"]}.get(what, []):
        pytest.importorskip(module, reason=f"needs {module}, which is not installed")
    assert succeeded(run_python("-", stdin=LIBRARIES[what] + LIBRARY)) == "True\n"


CHANGED = """
import mp_all as mp
import numpy as np

METHOD = {method!r}
rows = list(range(5000))
pixels = np.zeros(1 << 18)


def read(i=0):
    return (len(rows), rows[-1]) if "rows" in globals() else None


def bright(i=0):
    return float(pixels[-1])


def fill(i):
    rows.append(i)
    return len(rows)


def asked(pool):
    found = {{*pool.map(read, range(4), chunksize=1), pool.apply(read), pool.apply_async(read).get()}}
    return found.pop() if len(found) == 1 else found


context = mp.get_context(METHOD)
with context.Pool(2) as older:
    print(asked(older), older.apply(bright))
    rows.append("appended")
    pixels += 1
    print(asked(older), older.apply(bright))
    with context.Pool(1) as newer:
        print(asked(newer), asked(older), newer.apply(bright))
        first = rows
        rows = ["another"]
        print(asked(newer), asked(older))
        rows = first
        print(asked(newer), asked(older))
        del rows
        print(newer.apply(lambda: "rows" in globals()))
        rows = list(range(6000))
        print(asked(newer), asked(older))
    waiting = []
    for rows in ([1], [2, 3], first):
        waiting.append(older.apply_async(read))
    print([each.get() for each in waiting])
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_large_global_that_the_program_changes_travels(method: str) -> None:
    lines = succeeded(run_python("-", stdin=CHANGED.format(method=method))).splitlines()
    assert lines == [
        "(5000, 4999) 0.0",
        "(5001, 'appended') 1.0",
        "(5001, 'appended') (5001, 'appended') 1.0",
        "(1, 'another') (1, 'another')",
        "(5001, 'appended') (5001, 'appended')",
        "True",
        "(6000, 5999) (6000, 5999)",
        "[(1, 1), (2, 3), (5001, 'appended')]",
    ]


IN_PLACE = """
import sys

METHOD, NAME = "fork", sys.argv[1]
if NAME == "mp_all":
    import mp_all as mp
else:
    import multiprocessing as mp
cache = dict.fromkeys(range(5000))


def fill(key):
    cache[key] = len(cache)
    return len(cache)


def empty():
    global cache
    cache = {}


context = mp.get_context(METHOD)
with context.Pool(1) as pool:
    print([pool.apply(fill, (key,)) for key in "abc"], len(cache))
with context.Pool(1, empty) as pool:
    print([pool.apply(fill, (key,)) for key in "abc"], len(cache))
with context.Pool(1, cache.update, ({"d": 1},)) as pool:
    print([pool.apply(fill, (key,)) for key in "abc"], len(cache))
"""


def test_what_a_task_changes_in_a_large_global_stays_in_its_worker_as_in_multiprocessing() -> None:
    ours, theirs = (succeeded(run_python("-", name, stdin=IN_PLACE)) for name in ("mp_all", "multiprocessing"))
    assert ours == theirs == "[5001, 5002, 5003] 5000\n[1, 2, 3] 5000\n[5002, 5003, 5004] 5000\n"


RELEASED = """
import gc
import weakref

import mp_all as mp


class Row:
    pass


rows = [Row() for _ in range(2000)]
first = weakref.ref(rows[0])


def count(i):
    return len(rows)


with mp.get_context("fork").Pool(1) as pool:
    print(pool.map(count, [0]))
    rows = []
    print(pool.map(count, [0]))
    gc.collect()
    print(first())
"""


def test_a_large_global_is_free_when_a_function_has_used_its_successor() -> None:
    assert succeeded(run_python("-", stdin=RELEASED)) == "[2000]\n[0]\nNone\n"


# What each program prints under multiprocessing, and what it prints if all functions take their values at the call.
TOGETHER = {
    "another object that the workers have too": (
        """
def mae(i):
    return "mae"
def mse(i):
    return "mse"
class First:
    pass
class Second:
    pass
metric, Model, train, test = mae, First, [1], [2, 3]
def score(i):
    return metric(i), Model.__name__, len(train), len(test)
with ctx.Pool(1) as pool:
    print(pool.map(score, [0]))
    metric = mse
    print(pool.map(score, [0]), pool.map(lambda i: metric(i), [0]))
    Model = Second
    print(pool.apply(score, (0,)))
    train, test = test, train
    print(pool.apply(score, (0,)))
""",
        "[('mae', 'First', 1, 2)]\n[('mse', 'First', 1, 2)] ['mse']\n"
        "('mse', 'Second', 1, 2)\n('mse', 'Second', 2, 1)\n",
    ),
    "what a class no longer has of its own": (
        """
class Base:
    debug = False
class Sub(Base):
    debug, other = True, 2
def f(i):
    return Sub.debug, hasattr(Sub, "other"), "debug" in vars(Sub)
for method in mp.get_all_start_methods():
    Sub.debug, Sub.other = True, 2
    with mp.get_context(method).Pool(1) as pool:
        print(pool.apply(f, (0,)), end=" ")
        Sub.debug = False
        print(pool.apply(f, (0,)), end=" ")
        del Sub.other
        print(pool.apply(f, (0,)), end=" ")
        del Sub.debug
        print(pool.apply(f, (0,)))
""",
        "(True, True, True) (False, True, True) (False, False, True) (False, False, False)\n" * 3,
    ),
    "values at the call of what is not waited for": (
        """
import time
settings = {"rate": 0}
def rate(_=0):
    time.sleep(0.005)
    return settings["rate"]
reader, writer = ctx.Pipe()  # a pickle of it is for one receiver
def bright(_=0):
    return rate() + writer.closed
with ctx.Pool(1) as pool:
    results = []
    for settings["rate"] in range(10):
        results += [pool.map_async(bright, [0]), pool.map_async(bright, [0, 0]), pool.map_async(bright, range(40), 9)]
    found = [result.get() for result in results]
    print(found == [[i] * count for i in range(10) for count in (1, 2, 40)])
    results = []
    for settings["rate"] in range(10):
        results += [pool.map_async(rate, [0]), pool.starmap_async(rate, [(0,)]), pool.apply_async(rate)]
    print([result.get() for result in results] == [each for i in range(10) for each in ([i], [i], i)])
with mp.ProcessPoolExecutor(1, mp_context=ctx) as executor:
    for _ in range(1100):  # more than are pickled ahead at a time
        executor.submit(lambda _: 1, [1]).result()
    results = []
    for settings["rate"] in range(10):
        results += [executor.submit(rate), executor.submit(bright)]
    print([result.result() for result in results] == [each for i in range(10) for each in (i, i)])
""",
        "True\nTrue\nTrue\n",
    ),
    "what an abstract class has registered": (
        """
import abc
class Number(abc.ABC):
    pass
def f(i):
    return issubclass(int, Number)
with ctx.Pool(1) as pool:
    print(pool.map(f, [0]))
    Number.register(int)
    print(pool.map(f, [0]))
""",
        "[False]\n[True]\n",
    ),
    "a change that was taken back": (
        """
table, k = {}, 1
def fill(i):
    table[i] = i
    return len(table), k
def f(i):
    return fill(i)
def g(i):
    return fill(i)
with ctx.Pool(1) as pool:
    for i in range(3):
        pool.apply(f, (i,))
        pool.apply(g, (i,))
    k = 2
    print(pool.apply(f, (0,)))
    k = 1
    print(pool.apply(f, (0,)), pool.apply(g, (0,)))
""",
        "(1, 2)\n(1, 1) (1, 1)\n",
    ),
    "a global that was deleted": (
        """
x = 1
def f(i):
    return list(range(i))
def g(i):
    return x
with ctx.Pool(1) as pool:
    print(pool.map(f, [2]))
    list, x = [1, 2], 2
    try:
        pool.map(f, [2])
    except TypeError as error:
        print(error, pool.map(g, [0]))
    del list, x
    print(pool.map(f, [2]))
    try:
        pool.map(g, [0])
    except NameError as error:
        print(error)
""",
        "[[0, 1]]\n'list' object is not callable [2]\n[[0, 1]]\nname 'x' is not defined\n",
    ),
    "a cache beside a lock, a value and a named tuple": (
        """
import collections
Point = collections.namedtuple("Point", "x y")
lock, value, queue, cache = ctx.Lock(), ctx.Value("i", 0), ctx.Queue(), {}
def count(i):
    with lock:
        value.value += 1
        cache[i] = Point(i, i)
    return len(cache)
with ctx.Pool(1) as pool:
    print(pool.map(count, [1, 2, 3], chunksize=1), value.value)
""",
        "[1, 2, 3] 3\n",
    ),
    "what only the methods of Python's own names use": (
        """
import dataclasses
def helper(x):
    return "old"
scale = 2
class Model:
    def __init__(self):
        self.scale = scale
    def __call__(self, x):
        return helper(x)
@dataclasses.dataclass
class Row:
    cells: list = dataclasses.field(default_factory=lambda: [scale])
def make(x):
    return Model().scale, Row().cells
model = Model()
with ctx.Pool(1) as pool:
    def helper(x):
        return "new"
    print(pool.map(model, [1]), pool.map(make, [1]))
    scale = 3
    print(pool.map(make, [1]))
    Model.__init__ = lambda self: setattr(self, "scale", 4)
    print(pool.map(make, [1]))
""",
        "['new'] [(2, [2])]\n[(3, [3])]\n[(4, [3])]\n",
    ),
    "what a task gives a class": (
        """
scale = 1
class Net:
    limit = 1
def predict(x):
    if not hasattr(Net, "weights"):
        Net.weights = [x]
    Net.weights.append(x)
    return len(Net.weights) * 1000 + scale
def size(x):
    return len(getattr(Net, "weights", []))
with ctx.Pool(1) as pool:
    scale = 2
    print(pool.map(predict, [1, 2, 3], chunksize=1), pool.map(size, [1]), pool.map(predict, [4]), pool.map(size, [1]))
""",
        "[2002, 3002, 4002] [4] [5002] [5]\n",
    ),
    "functions with another module": (
        """
import functools
import math
scale = 2
@functools.wraps(math.sqrt)
def root(x):
    return scale
def use(x):
    return root(x)
table = {"a": 1}
get = table.get
def look(x):
    return get("a")
with ctx.Pool(1) as pool:
    print(pool.map(use, [1]), pool.map(look, [1]))
    scale = 3
    table["a"] = 2
    print(pool.map(use, [1]), pool.map(look, [1]))
""",
        "[2] [1]\n[3] [2]\n",
    ),
    "functions with a cache": (
        """
import functools
calls = []
@functools.lru_cache
def square(x):
    calls.append(x)
    return len(calls)
with ctx.Pool(1) as pool:
    print(pool.map(square, [1, 2, 1], chunksize=1))
""",
        "[1, 2, 1]\n",
    ),
    "a cache and a number": (
        """
cache, scale = {}, 2
def f(x):
    if x not in cache:
        cache[x] = x * scale
    return cache[x]
with ctx.Pool(1) as pool:
    print(pool.map(f, [1, 2, 3]))
    scale = 3
    print(pool.map(f, [1, 2, 3, 4]))
""",
        "[2, 4, 6]\n[3, 6, 9, 12]\n",
    ),
    "a list of nodes and their root": (
        """
class Node:
    def __init__(self, parent):
        self.parent = parent
root = Node(None)
nodes = [root]
for i in range(5000):
    nodes.append(Node(nodes[i // 2]))
def depth(i):
    node, count = nodes[i], 0
    while node is not root:
        node, count = node.parent, count + 1
    return count
with ctx.Pool(2) as pool:
    print(pool.map(depth, [1, 2, 1000]))
    root.weight = 1
    print(pool.map(depth, [1, 2, 1000], chunksize=1))
    print(pool.map(lambda i: depth(i), [1, 2, 1000]))
""",
        "[1, 1, 9]\n" * 3,
    ),
    "a closure that counts": (
        """
def make():
    count = 0
    def step(x):
        nonlocal count
        count += 1
        return count
    return step
step = make()
with ctx.Pool(1) as pool:
    print(pool.map(step, range(3), chunksize=1))
""",
        "[1, 1, 1]\n",
    ),
    "an index and a large list that is changed where nobody looks": (
        """
tour, best = list(range(20000)), 3
def look(_):
    return tour[best]
with ctx.Pool(1) as pool:
    print(pool.map(look, [0]))
    tour[777] = -1
    best = 777
    print(pool.map(look, [0]))
""",
        "[3]\n[-1]\n",
    ),
    "arguments that bring a changed class": (
        """
memo, hits = {}, [0]
def count(key):
    memo[key] = 1
    hits[0] += 1
    return len(memo), hits[0]
class Question:
    tag = [0]
    def __init__(self, key):
        self.key = key
    def see(self):
        return memo
def ask(question):
    return count(question.key)
questions = [Question(i) for i in range(2)]
with ctx.Pool(1) as pool:
    print(pool.map(ask, questions, chunksize=1))
    Question.tag = [1]
    print(pool.map(ask, questions, chunksize=1))
    print(pool.map(count, [5]))
""",
        "[(1, 1), (2, 2)]\n[(1, 1), (1, 1)]\n[(3, 3)]\n",
    ),
    "a class that is changed while tasks wait": (
        """
import threading
class Config:
    rate = 1
    extra = [Ellipsis]
def rate(x):
    return Config.rate, Config.extra
go = threading.Event()
def slow():
    yield 0
    go.wait(60)
    yield 1
with ctx.Pool(1) as pool:
    waiting = pool.imap(rate, slow())
    print(next(waiting))
    Config.rate, Config.new = 2, 1
    print(pool.apply(rate, (0,)), pool.apply(lambda: Config.new))
    go.set()
    print(next(waiting), pool.apply(hasattr, (Config, "new")))
""",
        "(1, [Ellipsis])\n(2, [Ellipsis]) 1\n(1, [Ellipsis]) True\n",
    ),
    "numbers that follow each other": (
        """
import random
numbers, data = random.Random(5), [1]
def draw(x):
    return numbers.randrange(1000), len(data)
def another(x):
    return numbers.randrange(1000)
with ctx.Pool(1) as pool:
    found = pool.map(draw, [0, 0], chunksize=1)
    data = [1, 2]
    found += pool.map(draw, [0, 0], chunksize=1)
    found += pool.map(another, [0, 0], chunksize=1)
    own = random.Random(5)
    print([each[0] if isinstance(each, tuple) else each for each in found] == [own.randrange(1000) for _ in range(6)])
""",
        "True\n",
    ),
    "a name that the program makes later": (
        """
table = list(range(3000))
def use(x):
    return (len(table), total) if "total" in globals() else sum([x])
with ctx.Pool(1) as pool:
    print(pool.apply(use, (1,)))
    total, sum = 5, None
    print(pool.apply(use, (1,)))
""",
        "1\n(3000, 5)\n",
    ),
    "a task with a pool of its own": (
        """
table = [0] * 3000
def inner(x):
    return len(table) + x
def outer(x):
    table.append(1)
    with ctx.Pool(1) as pool:
        return pool.map(inner, [x, x])
with mp.ProcessPoolExecutor(1, mp_context=ctx) as pool:
    print(list(pool.map(outer, [1, 2])))
    print(pool.submit(outer, 3).result())
    print(pool.submit(inner, 3).result())
""",
        "[[3002, 3002], [3004, 3004]]\n[3006, 3006]\n3006\n",
    ),
    "partial functions, methods and decorated ones": (
        """
import contextlib
import functools
table = {i: i for i in range(3000)}
def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper
@contextlib.contextmanager
def opened():
    yield table
@traced
def look(key, add=0):
    with opened() as found:
        return found[key] + add
class Engine:
    @staticmethod
    def run(key):
        table[key] += 1
        return table[key]
    def step(self, key):
        return self.run(key)
with ctx.Pool(1) as pool:
    print(pool.map(functools.partial(look, 7), [1, 2]), pool.map(look, [1, 2]))
    print([pool.apply(Engine.run, (5,)) for _ in range(3)], pool.map(Engine().step, [5, 5]))
""",
        "[8, 9] [1, 2]\n[6, 7, 8] [9, 10]\n",
    ),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_what_a_message_names_and_what_it_sends_are_never_mixed(what: str) -> None:
    program, expected = TOGETHER[what]
    assert succeeded(run_python("-", stdin=f"import mp_all as mp\nctx = mp.get_context('fork')\n{program}")) == expected


HOME = """
import sys

import mp_all as mp

class Table(dict):
    def __reduce__(self):
        raise RuntimeError("it travels")

table = Table(a=1)


class Node:
    class Part:
        def __init__(self, name):
            self.name = name

    def look(self):
        return table


class Refused(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.node = Node()

    look = Node.look


def count():
    return len(table)


def make(which):
    if which == "error":
        raise Refused("no")
    return {"node": Node(), "class": Node, "part": Node.Part("b"), "function": count, "method": Node.look}[which]


ctx = mp.get_context("fork")
with ctx.Pool(1) as pool:
    node, kind, part, function, method = pool.map(make, ["node", "class", "part", "function", "method"])
    assert type(node) is kind is Node and type(part) is Node.Part
    assert function is count and method is Node.look
    try:
        pool.apply(make, ("error",))
    except Refused as error:
        assert type(error.node) is Node
    waiting = pool.apply_async(make, ("node",))
    waiting.wait()

    class Node:
        pass

    assert type(waiting.get()).__name__ == "Node"

    def local():
        class Inside:
            pass

        return Inside

    assert pool.apply(lambda kind: kind(), (local(),)).__class__.__name__ == "Inside"
print("done")
"""


def test_a_result_has_the_definitions_of_the_program() -> None:
    assert succeeded(run_python("-", stdin=HOME)) == "done\n"


KEPT = """
import gc
import os
import mp_all as mp

state = {}


def use():
    return len(state)


class Row:
    pass


rows, text = [Row() for _ in range(2000)], "a" * (200 << 20)


def count():
    return len(rows) + len(text) - len(text)


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


pool = mp.get_context("fork").Pool(1)
pid = pool.apply(os.getpid)
print(pool.apply(use), pool.apply(count))
first = rows[0]
before = memory()
del rows, text
print(len(gc.get_referrers(first)), before - memory() > 150)
state["pool"] = pool
del state, pool
gc.collect()
while True:  # the worker ends with its pool
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        break
print("ended")
"""


def test_a_pool_keeps_nothing_alive_that_its_workers_were_forked_with() -> None:
    assert succeeded(run_python("-", stdin=KEPT)) == "0 2000\n1 True\nended\n"


def set_attribute(thing: Any) -> None:
    thing.name = 7


def frame() -> Any:
    return pytest.importorskip("pandas").DataFrame({"a": [1, 2]})


def dtype() -> Any:
    pandas = pytest.importorskip("pandas")
    kind = type("Own", (pandas.api.extensions.ExtensionDtype,), {"__module__": "__main__", "unit": 1})
    return [kind()]


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1

    def exchange(self) -> None:
        del self.a
        self.b = 1


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the sign of zero": (lambda: [0.0], lambda thing: thing.__setitem__(0, -0.0)),
    "the last of many objects": (
        lambda: [SimpleNamespace(name=i) for i in range(3000)],
        lambda thing: set_attribute(thing[-1]),
    ),
    "the last of many texts": (lambda: np.array(["a"] * 8000, object), lambda thing: thing.__setitem__(-1, "b")),
    "an item of a list": (lambda: [1, 2, 1], lambda thing: thing.__setitem__(1, 1)),
    "the order of equal items": (lambda: [True, False, False], lambda thing: thing.sort()),
    "a longer list": (lambda: [0] * 5000, lambda thing: thing.append(0)),
    "an item of a dict in a list": (lambda: [{"a": 1}], lambda thing: thing[0].update(a=2)),
    "an item of a set": (lambda: {1, 2}, lambda thing: thing.add(3)),
    "the kind of a number": (lambda: [1.0], lambda thing: thing.__setitem__(0, 1)),
    "an element of a small array": (lambda: np.zeros((3, 4)), lambda thing: thing.__setitem__((2, 3), 1)),
    "a large array": (lambda: np.zeros((700, 700)), lambda thing: np.add(thing, 1, out=thing)),
    "a part of an array": (lambda: np.zeros(100)[::3], lambda thing: thing.__setitem__(-1, 1)),
    "an array of objects": (lambda: np.array([None, 1], object), lambda thing: thing.__setitem__(0, 2)),
    "a record": (lambda: np.zeros(3, "i4, f8"), lambda thing: thing.__setitem__(1, (1, 2.0))),
    "an attribute": (lambda: SimpleNamespace(name=1), set_attribute),
    "an item of an array of numbers": (lambda: array.array("d", [1, 2]), lambda thing: thing.__setitem__(1, 3)),
    "a byte": (lambda: bytearray(b"abc"), lambda thing: thing.__setitem__(0, 0)),
    "a record of an array": (lambda: [np.zeros(3, "i4, f8")[0]], lambda thing: thing[0].__setitem__("f0", 5)),
    "a record of an array with attributes": (
        lambda: [np.rec.array([(1, 2.0)])[0]],
        lambda thing: setattr(thing[0], "f0", 5),
    ),
    "the names in a type of records": (
        lambda: [np.dtype("i4, f8")],
        lambda thing: setattr(thing[0], "names", ("a", "b")),
    ),
    "the names of a record": (lambda: np.zeros(3, "i4, f8"), lambda thing: setattr(thing.dtype, "names", ("a", "b"))),
    "which slot is set": (lambda: Slots(), lambda thing: thing.exchange()),
    "which sentinel": (lambda: [object()], lambda thing: thing.__setitem__(0, object())),
    "a method of a container": (lambda: [{}.get], lambda thing: thing[0].__self__.update(a=1)),
    "a frame": (frame, lambda thing: thing.__setitem__("a", [1, 3])),
    "the name of an index": (frame, lambda thing: setattr(thing.index, "name", "when")),
    "the name of columns": (frame, lambda thing: setattr(thing.columns, "names", ["what"])),
    "what a frame says of itself": (frame, lambda thing: thing.attrs.update(a=1)),
    "a type of the program": (dtype, lambda thing: setattr(thing[0], "unit", 2)),
    "a long text to bytes": (lambda: ["a" * 5000], lambda thing: thing.__setitem__(0, b"a" * 5000)),
    "a buffer to an array": (lambda: [bytearray(b"a")], lambda thing: thing.__setitem__(0, array.array("B", b"a"))),
    "a list to a tuple": (lambda: [[0] * 2000], lambda thing: thing.__setitem__(0, (0,) * 2000)),
    "how long a queue is at most": (lambda: [deque([1], 3)], lambda thing: thing.__setitem__(0, deque([1], 5))),
    "the head of a large buffer": (lambda: bytearray(90_000), lambda thing: thing.__setitem__(5, 1)),
    "a date in a frame": (
        lambda: pytest.importorskip("pandas").Series(np.array(["2020", "2021"], "M8[ns]")).to_frame("a"),
        lambda thing: thing.__setitem__("a", thing["a"].iloc[::-1].array),
    ),
    "a tensor to a parameter": (
        lambda: [pytest.importorskip("torch").zeros(3)],
        lambda thing: thing.__setitem__(0, pytest.importorskip("torch").nn.Parameter(thing[0], False)),
    ),
    "a tensor": (lambda: pytest.importorskip("torch").zeros(3, 4), lambda thing: thing[2].add_(1)),
    "a gradient": (
        lambda: pytest.importorskip("torch").zeros(3, requires_grad=True),
        lambda thing: thing.sum().backward(),
    ),
    "which of two objects": (lambda: [a := [], a, []], lambda thing: thing.__setitem__(1, thing[2])),
}


@pytest.mark.parametrize("without_libshm", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_contents_tell_a_change(what: str, without_libshm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without_libshm:
        monkeypatch.setattr(contents, "look", looks.look)
        monkeypatch.setattr(contents, "see", looks.see)
    make, change = CHANGES[what]
    thing = make()
    before = Contents(thing)
    before.freeze()
    assert Contents(thing).are_same_as(before)
    assert Contents(thing, keep=True).are_same_as(Contents(thing, keep=True))
    if before.complete and not without_libshm:
        assert Contents(thing, before=before).count == before.count
    change(thing)
    now = Contents(thing)
    assert not (now.complete and now.are_same_as(before))
    if not without_libshm:
        with pytest.raises(LookupError):
            Contents(thing, before=before)


@pytest.mark.parametrize(
    "thing",
    [
        *(math.nan, [math.nan], np.array(5), np.zeros((0, 3)), np.ma.masked_array([1, 2], [0, 1]), {1: {2: [3]}}),
        [Fraction(1, 2), [*range(600)], Path(), [*range(300)], random.Random(1), [*range(900)], [[2]]],
        *(contextvars.ContextVar("a"), threading.local(), (each for each in [1])),
        *(object(), np.random.default_rng(1), random.Random(1), Path(), Fraction(1, 2), partial(max, 1), date.today()),
    ],
)
def test_contents_that_have_not_changed_are_the_same(thing: Any) -> None:
    before = Contents(thing)
    before.freeze()
    now = Contents(thing)
    assert now.complete
    assert now.are_same_as(before)
    assert Contents(thing, before=before).complete


ATOMS = st.integers() | st.floats() | st.text() | st.binary(max_size=9000) | st.booleans() | st.none()
THINGS = st.recursive(
    ATOMS | ATOMS.map(lambda name: SimpleNamespace(name=name)) | st.integers(0, 300).map(np.arange),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts) | st.tuples(parts, parts),
    max_leaves=30,
)


@given(THINGS, st.data())
def test_a_second_look_sees_what_a_first_one_does(thing: Any, data: st.DataObject) -> None:
    before = Contents(thing)
    before.freeze()
    assert Contents(thing, before=before).count == Contents(thing).count
    lists, pending = [], [thing]
    for each in pending:
        lists += [each] if type(each) is list and each else []
        pending += [*each] if type(each) in (list, tuple) else [*each.values()] if type(each) is dict else []
    if lists:
        chosen = lists[data.draw(st.integers(0, len(lists) - 1))]
        chosen[data.draw(st.integers(0, len(chosen) - 1))] = data.draw(THINGS)
        try:
            Contents(thing, before=before)
        except LookupError:  # also for an equal object at another place
            return
        assert Contents(thing).are_same_as(before)


@pytest.mark.parametrize("thing", [io.BytesIO(), [itertools.count()], np.frombuffer(bytearray(8))])
def test_a_look_tells_that_it_does_not_see_all(thing: Any) -> None:
    assert not Contents(thing).complete


def test_a_look_keeps_nothing_alive_and_runs_no_code_of_the_program() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    odd = [Odd() for _ in range(2000)]
    contents = Contents(odd)
    contents.freeze()
    assert contents.complete
    assert Contents(odd).are_same_as(contents)
    assert Contents(odd, before=contents).complete
    first = weakref.ref(odd[0])
    del odd
    gc.collect()
    assert first() is None


def test_a_look_does_not_touch_a_file_in_memory_which_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "pixels"
    pixels = np.memmap(path, "u1", "w+", shape=(2 << 20,))
    path.write_bytes(b"")
    before = Contents(pixels[5:])
    assert before.complete
    assert Contents(pixels).complete
    assert not Contents(pixels[5:]).are_same_as(before)
