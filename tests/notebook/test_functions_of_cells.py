"""Functions and classes that no file has: of a notebook's cells, a prompt, standard input, ``python -c``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cells import CELLS
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")


def session(method: str) -> list[str]:
    return [f"METHOD = {method!r}\n{CELLS[0]}", *CELLS[1:]]


@pytest.mark.parametrize("method", METHODS)
def test_functions_and_classes_of_cells_run_in_a_real_kernel(method: str, tmp_path: Path) -> None:
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"needs {name}, which is not installed")
    # At its end a kernel kills its process group, and in it the manager that would remove the session's folder.
    folder = {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    done = run_python(str(Path(__file__).with_name("kernel.py")), stdin=json.dumps(session(method)), **folder)
    assert done.returncode == 0, done.stderr  # the kernel warns of this and that
    assert "all cells ran\n" in done.stdout


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["standard input", "-c", "a prompt"])
def test_functions_and_classes_of_a_program_without_a_file_run_in_other_processes(way: str, method: str) -> None:
    program = "\n".join(session(method))
    if way == "-c":
        done = run_python("-c", program)
    elif way == "standard input":
        done = run_python("-", stdin=program)
    else:
        # Each cell is one statement to the prompt, which ends a compound statement at an empty line.
        lines = "".join(f"exec(compile({cell!r}, '<stdin>', 'exec'))\n" for cell in session(method))
        done = run_python("-i", stdin=lines)
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr  # it also has the prompts
        done.stderr = ""
    assert "all cells ran\n" in succeeded(done)


WHAT_CANNOT_BE_PICKLED = """
import functools
import os
import threading
from concurrent.futures import ProcessPoolExecutor

import mp_all as mp

LOCK = threading.Lock()
FILE = open(os.devnull, "w")
ROWS = (row for row in [7] * 99)
NUMBER = 10


def lock(i):
    with LOCK:
        return i + NUMBER


def write(i):
    return FILE.write("x" * i)


def follow(i):
    return next(ROWS) + i


@functools.singledispatch
def dispatch(i):
    return "an object"


@dispatch.register
def _(i: int):
    return "an int"


class Locked:
    LOCK = threading.Lock()

    def __init__(self, value):
        self.value = value

    def get(self):
        with self.LOCK:
            return self.value


def use_class(i):
    return Locked(i).get()


def outer():
    inside = threading.Lock()

    def inner(i):
        with inside:
            return i

    return inner


closure = outer()
"""


def test_forked_workers_have_what_cannot_be_pickled_from_the_program() -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
fork = mp.get_context("fork")
for make in (lambda: fork.Pool(2), lambda: mp.ProcessPoolExecutor(1, mp_context=fork)):
    with make() as pool:
        for function, result in (
            (lock, 13), (write, 3), (follow, 10), (dispatch, "an int"), (use_class, 3), (closure, 3)
        ):
            assert list(pool.map(function, [3, 3])) == [result, result], function
        NUMBER = 20
        assert list(pool.map(lock, [3])) == [23]  # the rest is as at the call
        NUMBER = 10
        function = lambda i: lock(i) + 1
        assert list(pool.map(function, [3])) == [14]
        # Another lock than the workers have: they must not take theirs.
        LOCK, before = threading.Lock(), LOCK
        try:
            print(list(pool.map(lock, [3])))
        except TypeError as error:
            print("LOCK" in error.__notes__[0], end=" ")
        LOCK = before
    LOCK = threading.Lock()
    with make() as pool:
        print(list(pool.map(lock, [3])))
"""
    assert succeeded(run_python("-", stdin=program)) == "True [13]\n" * 2


def test_a_worker_keeps_what_its_initializer_has_made_in_the_place_of_what_cannot_be_pickled(start_method: str) -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
def make_own():
    global LOCK
    LOCK = threading.RLock()


def kind(i):
    with LOCK:
        return type(LOCK).__name__


with mp.get_context({start_method!r}).Pool(1, make_own) as pool:
    print([pool.apply(kind, (0,)) for _ in range(3)] == ["RLock"] * 3, pool.map(kind, [0]))
"""
    assert succeeded(run_python("-", stdin=program)) == "True ['RLock']\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_error_names_the_global_that_a_new_process_has_not_and_that_cannot_be_pickled(method: str) -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
context = mp.get_context({method!r})


def read():
    print(LOCK)


def tried(call, *args, **keywords):
    try:
        return call(*args, **keywords)
    except Exception as error:
        print(type(error).__name__, [name for name in ("LOCK", "ROWS") if name in str([error, *error.__notes__])])


with context.Pool(1) as pool:
    tried(pool.apply, lock, (1,))
    tried(pool.apply_async(follow, (1,)).get)
    print(pool.apply(len, ("ab",)))
tried(context.Process(target=lock, args=(1,)).start)
tried(context.Pool, 1, read)
with context.Pool(1, functools.partial(print, flush=True), ("begun",)) as pool:
    tried(pool.apply, lock, (1,))
"""
    at_once, later = "TypeError ['{}']\n", "UnpicklingError ['LOCK']\n"
    expected = at_once.format("LOCK") + at_once.format("ROWS") + "2\n" + at_once.format("LOCK") * 2 + "begun\n" + later
    assert succeeded(run_python("-", stdin=program)) == expected


def test_what_is_sent_beside_what_cannot_be_pickled_leaves_no_descriptor_and_no_memory() -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
import socket

import numpy as np

one, other = socket.socketpair()
array = np.zeros(100_000)


def use(i):
    with LOCK:
        return one.fileno() > 0 and array.size


with mp.get_context("fork").Pool(1) as pool:
    pool.apply(use, (0,))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        assert pool.apply(use, (0,)) == 100_000
    print(len(os.listdir("/proc/self/fd")) <= before + 5, mp.memory_stats()["in_flight_bytes"])
"""
    assert succeeded(run_python("-", stdin=program)) == "True 0\n"


def test_an_error_that_a_reducer_raises_again_and_again_arrives() -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
error = ValueError("once")
error.add_note("the note")


class Refuses:
    def __reduce__(self):
        raise error


with mp.get_context("fork").Pool(1) as pool:
    try:
        pool.apply(functools.partial(lambda thing: thing, Refuses()))
    except ValueError as raised:
        print(raised is error)
"""
    assert succeeded(run_python("-", stdin=program)) == "True\n"


def test_a_process_that_was_not_forked_with_it_says_what_it_lacks() -> None:
    program = f"""{WHAT_CANNOT_BE_PICKLED}
with mp.get_context("fork").Pool(1):
    pass
with mp.get_context("spawn").Pool(1) as pool:
    try:
        pool.map(lock, [3])
    except Exception as error:
        print(error)
try:
    mp.get_context("spawn").Process(target=lock, args=(3,)).start()
except TypeError as error:
    print(error)
"""
    lacks, refused = succeeded(run_python("-", stdin=program)).splitlines()
    assert lacks.startswith("'LOCK' of the main module cannot be pickled") and "was not forked with it" in lacks
    assert "cannot pickle '_thread.lock' object" in refused


@pytest.mark.parametrize("method", METHODS)
def test_functions_with_a_cache_travel_with_an_empty_one(method: str) -> None:
    program = f"""
import functools
import mp_all as mp

pool = mp.get_context({method!r}).Pool(1)


@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Circle:
    @functools.cached_property
    def area(self):
        return 3.0

    @functools.cache
    def scaled(self, by):
        return self.area * by


def use(n):
    circle = Circle()
    return fibonacci(n), circle.scaled(n), circle.area, fibonacci.cache_parameters()["maxsize"]


with pool:
    print(pool.map(fibonacci, [30]), pool.apply(use, (10,)))
"""
    assert succeeded(run_python("-", stdin=program)) == "[832040] (55, 30.0, 3.0, 7)\n"


LETS_GO = """
import gc
import os
import socket
import time
import weakref

import mp_all as mp

gc.disable()


def function(value):
    return 1


class Thing:
    pass


class Refused:
    def __reduce__(self):
        raise ValueError("refused")


def lets_go(send, *more):
    thing = Thing()
    known = weakref.ref(thing)
    try:
        send((thing, function, *more))
    except ValueError:
        pass
    del thing
    assert known() is None, send


def descriptors():
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    queue = mp.SimpleQueue()

    def there_and_back(value):
        queue.put(value)
        queue.get()

    lets_go(there_and_back)
    lets_go(there_and_back, Refused())
    with mp.get_context(METHOD).Pool(1) as pool:
        lets_go(lambda value: pool.apply(function, (value,)))
        lets_go(lambda value: pool.map(function, [value]))
    with mp.ProcessPoolExecutor(1, mp_context=mp.get_context(METHOD)) as executor:
        lets_go(lambda value: executor.submit(function, value).result())
        future = executor.submit(function, [1])
        future.result()
        known = weakref.ref(future)
        del future
        assert known() is None
    one, other = socket.socketpair()
    there_and_back((one, function))  # starts the thread that sends descriptors
    before = descriptors()
    for _ in range(5):
        lets_go(there_and_back, one)
        lets_go(there_and_back, one, Refused())
    while descriptors() > before:  # the thread closes what it has sent a moment later
        time.sleep(0.01)
    print("all let go")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_message_with_a_function_keeps_neither_objects_nor_descriptors(method: str) -> None:
    assert succeeded(run_python("-", stdin=f"METHOD = {method!r}\n{LETS_GO}")) == "all let go\n"


WHAT_AN_INITIALIZER_CHANGES = """
import numpy as np

import mp_all as mp

shared, rows, numbers, large = {}, [], np.zeros(3), ["a text"] * 10_000
flags = [[True, False], [False, True]]
grid = [[0] * 40 for _ in range(40)]
itself = [1]
itself += [itself, itself]


class State:
    place = None
    known = {}

    def keep(self, value):
        self.value = value


class Fitted:
    weight_ = None


state, another = State(), State()


def keep(raw, again):
    shared["array"] = raw
    rows.append(len(raw))
    numbers[0] = len(raw)
    large.append(len(raw))
    flags[1][0], grid[39][39], itself[1] = True, 30, 1
    State.place = Fitted.weight_ = len(raw)
    State.known["length"] = len(raw)
    state.value = again.value = len(raw)
    use.length = len(raw)


def use(i):
    found = [len(rows), rows[-1], int(numbers[0]), large[-1], State.place, State.known["length"], state.value]
    found += [Fitted.weight_, use.length, grid[39][39]]
    if (flags, itself[1], itself[2]) != ([[True, False], [True, True]], 1, itself):
        return "lost"
    return found == [1, *[30] * 9] and float(np.frombuffer(shared["array"])[i])


def of_another(i):
    return another.value


def of_state():
    return state.value
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_keeps_what_its_initializer_has_changed_in_place(method: str) -> None:
    program = f"""{WHAT_AN_INITIALIZER_CHANGES}
ctx = mp.get_context({method!r})
raw = ctx.RawArray("d", 30)
np.frombuffer(raw)[:] = range(30)
for make in (
    lambda **settings: ctx.Pool(1, **settings), lambda **settings: mp.ProcessPoolExecutor(1, mp_context=ctx, **settings)
):
    with make(initializer=keep, initargs=(raw, another)) as pool:
        for _ in range(2):
            print(list(pool.map(use, [7, 8])) == [7, 8], end=" ")
            print(list(pool.map(lambda i: use(i), [9])) == [9], end=" ")
    with make(initializer=state.keep, initargs=(5,)) as pool:
        print(list(pool.map(lambda i: State.place, [1])) == [None])
"""
    assert succeeded(run_python("-", stdin=program)) == "True True True True True\n" * 2


def test_a_forked_worker_does_with_the_objects_of_its_initializer_what_that_of_multiprocessing_does() -> None:
    program = f"""{WHAT_AN_INITIALIZER_CHANGES}
ctx = mp.get_context("fork")
with ctx.Pool(1, state.keep, (5,)) as pool:
    print(pool.apply(of_state), end=" ")
with ctx.Pool(1, keep, (ctx.RawArray("d", 30), another)) as pool:
    print(pool.map(use, [3]), pool.map(of_another, [0]))
"""
    ours = succeeded(run_python("-", stdin=program))
    standard = succeeded(run_python("-", stdin=program.replace("import mp_all as mp", "import multiprocessing as mp")))
    assert ours == standard == "5 [0.0] [30]\n"


@pytest.mark.parametrize("method", METHODS)
def test_the_new_body_of_a_function_has_the_attributes_that_an_initializer_gave_it(method: str) -> None:
    program = f"""
import enum

import mp_all as mp


class Color(enum.Enum):
    RED = 1


class Store:
    kept = {{}}


def keep(value):
    look.value = alias["value"] = value
    Store.kept[Color.RED] = value


def look(i):
    return i, look.value, table["value"], Store.kept, Color.RED.name


alias = table = {{}}
look.factor = 1
with mp.get_context({method!r}).Pool(1, keep, (5,)) as pool:
    print(pool.map(look, [1, 2]))

    def look(i):
        return look.value, look.factor, table is alias, [*Color]

    look.factor = 2

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    print(pool.map(look, [1]))
"""
    assert succeeded(run_python("-", stdin=program)).splitlines() == [
        "[(1, 5, 5, {<Color.RED: 1>: 5}, 'RED'), (2, 5, 5, {<Color.RED: 1>: 5}, 'RED')]",
        "[(5, 2, True, [<Color.RED: 1>, <Color.BLUE: 2>])]",
    ]


@pytest.mark.parametrize("method", METHODS)
def test_what_an_initializer_only_reads_may_be_defined_again(method: str) -> None:
    program = f"""
import enum
import weakref

import mp_all as mp


class Color(enum.Enum):
    RED = 1


class Big:
    pass


class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("not ready")


def helper():
    return "old"


helper.calls = []
missing = object()
data, numbers, lazy = [1], {{"a": [1]}}, Lazy()
if {method!r} == "fork":
    big = Big()
    proxy = weakref.proxy(big)
    del big


def read():
    return Color.RED, helper(), helper.calls, missing, data, numbers


def use(i, default=missing):
    return [color.name for color in Color], helper(), default is missing, data, numbers["a"]


with mp.get_context({method!r}).Pool(1, read) as pool:
    print(pool.apply(use, (0,)))

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    def helper():
        return "new"

    data = None
    numbers["a"].append(2)
    print(pool.apply(use, (0,)))
    data = [1]
    print(pool.apply(use, (0,)))
"""
    assert succeeded(run_python("-", stdin=program)).splitlines() == [
        "(['RED'], 'old', True, [1], [1])",
        "(['RED', 'BLUE'], 'new', True, None, [1, 2])",
        "(['RED', 'BLUE'], 'new', True, [1], [1, 2])",
    ]


RANDOM = """
import random
from random import randint
from random import random as draw

import numpy as np
from numpy.random import rand

import mp_all as mp

rng, legacy = np.random.default_rng(0), np.random.RandomState(1)
plain, twister = random.Random(2), np.random.Generator(np.random.MT19937(3))
again, inside = rng, [rng]


def both(i):
    return float(again.normal()), float(inside[0].normal()), again is rng is inside[0]


def numbers(i):
    return float(rng.normal()), float(legacy.rand()), plain.random(), float(twister.random())


def seeded(seed):
    np.random.seed(seed)
    random.seed(seed)
    return float(rand()), draw(), randint(1, 1 << 30)


def skip():
    rng.normal(), legacy.rand(), plain.random(), twister.random()


expected = [numbers(i) for i in range(5)]
rng = again = np.random.default_rng(0)
inside = [rng]
of_both = [both(i) for i in range(2)]
rng, legacy = np.random.default_rng(0), np.random.RandomState(1)
plain, twister = random.Random(2), np.random.Generator(np.random.MT19937(3))
again, inside = rng, [rng]
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_generator_of_random_numbers_goes_on_in_its_worker(method: str) -> None:
    program = f"""{RANDOM}
ctx = mp.get_context({method!r})
with ctx.Pool(1) as pool:
    print(pool.map(numbers, range(3), chunksize=1) == expected[:3], end=" ")
    print([pool.apply(numbers, (0,)) for _ in range(2)] == expected[3:], end=" ")
    rng = np.random.default_rng(9)  # the program has another one
    print(pool.apply(numbers, (0,))[0] == float(np.random.default_rng(9).normal()))
rng = np.random.default_rng(0)
with mp.ProcessPoolExecutor(1, mp_context=ctx, initializer=skip) as pool:
    print([pool.submit(numbers, 0).result() for _ in range(2)] == expected[1:3], end=" ")
rng = again = np.random.default_rng(0)
inside = [rng]
with ctx.Pool(1) as pool:
    print([pool.apply(both, (0,)) for _ in range(2)] == of_both)
"""
    assert succeeded(run_python("-", stdin=program)) == "True True True\nTrue True\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_task_seeds_the_generator_that_the_functions_of_its_module_use(method: str) -> None:
    program = f"""{RANDOM}
with mp.get_context({method!r}).Pool(1) as pool:
    one, again, other = pool.map(seeded, [1, 1, 2], chunksize=1)
print(one == again == seeded(1), other == seeded(2), one == other)
"""
    assert succeeded(run_python("-", stdin=program)) == "True True False\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_text_file_is_that_of_the_forked_worker_and_no_copy_of_its_content(method: str, tmp_path: Path) -> None:
    program = f"""
import sys

import mp_all as mp

file, output = open({str(tmp_path / "file")!r}, "a+"), sys.stdout


def write(i):
    file.write(f"{{i}}\\n")
    file.flush()


def is_standard(i):
    return output is sys.stdout


with mp.get_context({method!r}).Pool(1) as pool:
    print(pool.apply(is_standard, (0,)))
    try:
        pool.map(write, range(3))
    except TypeError as error:
        print(error)
"""
    printed = succeeded(run_python("-", stdin=program)).splitlines()
    written = (tmp_path / "file").read_text()
    if method == "fork":
        assert (printed, written) == (["True"], "0\n1\n2\n")
    else:
        assert (printed, written) == (["True", "cannot pickle 'TextIOWrapper' object"], "")


@pytest.mark.parametrize("method", METHODS)
def test_a_function_may_mention_a_pool_or_a_result_that_its_worker_does_not_have(method: str) -> None:
    program = f"""
import mp_all as mp

ctx = mp.get_context({method!r})


class Runner:
    def work(self, i):
        return 2 * i

    def run(self, pool_of):
        return list(pool_of().map(self.work, range(3))), result.get()


def twice(i, top=False):
    return pool.apply(twice, (i,)) + executor.submit(twice, i).result() + len(imap) if top else 2 * i


with ctx.Pool(1) as pool, mp.ProcessPoolExecutor(1, mp_context=ctx) as executor:
    result, future, imap = pool.apply_async(abs, (-1,)), executor.submit(abs, -2), pool.imap(abs, [1])
    print(Runner().run(lambda: pool), Runner().run(lambda: executor), pool.apply(twice, (3,)))
    try:
        pool.apply(twice, (3, True))
    except NameError as error:
        print(error)
"""
    assert succeeded(run_python("-", stdin=program)).splitlines() == [
        "([0, 2, 4], 1) ([0, 2, 4], 1) 6",
        "name 'pool' is not defined",
    ]
