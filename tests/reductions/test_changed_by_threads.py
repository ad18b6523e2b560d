"""An array that another thread changes while it is sent arrives as it was before or after the change."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from support.scripts import run_script, succeeded

import mp_all as mp

# What these tests are about; newer versions of NumPy deprecate it.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the (dtype|shape|strides) on a NumPy array:DeprecationWarning")


@contextmanager
def beside(change: Callable[[int], None]) -> Iterator[None]:
    """
    Call *change* with 0, 1, 2, ... in another thread, as often as it goes.
    """
    stop, number = threading.Event(), 0

    def run() -> None:
        nonlocal number
        while not stop.is_set():
            change(number)
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert number


def as_sent(a: np.ndarray) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(a))


def as_sent_in_a_list(a: np.ndarray) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps([a, "beside"]))[0]


ways = pytest.mark.parametrize("sent", [as_sent, as_sent_in_a_list], ids=["alone", "in a list"])
sizes = pytest.mark.parametrize("nbytes", [240, 48_000, 2_400_000], ids=["small", "medium", "large"])


def frozen(a: np.ndarray) -> np.ndarray:
    a.flags.writeable = False
    return a


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda a: a,
    "strided": lambda a: np.repeat(a, 2)[::2],
    "read-only": frozen,
    "shared": lambda a: mp.share_memory(a),
    "shared, read-only": lambda a: frozen(mp.share_memory(a)[:]),
}


@ways
@sizes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shape_set_meanwhile_is_the_old_or_the_new_one(
    strategy: str, layout: str, nbytes: int, sent: Callable[[Any], Any]
) -> None:
    numbers = np.arange(nbytes // 8, dtype=np.int64)
    a = LAYOUTS[layout](numbers.copy())
    shapes = [(numbers.size,), (6, numbers.size // 6), (2, 3, numbers.size // 6)]

    def change(number: int) -> None:
        a.shape = shapes[number % 3]

    with beside(change):
        for _ in range(60):
            arrived = sent(a)
            assert arrived.shape in shapes
            assert (arrived.reshape(-1) == numbers).all()


@ways
@sizes
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "strided"])
def test_a_dtype_set_meanwhile_is_the_old_or_the_new_one(
    strategy: str, layout: str, nbytes: int, sent: Callable[[Any], Any]
) -> None:
    numbers = np.arange(nbytes // 8, dtype=np.int64)
    a = LAYOUTS[layout](numbers.copy())
    dtypes = [np.dtype(name) for name in ("i8", "f4", "M8[25s]", ">u2", "V24", [("x", "u4"), ("y", "u4")])]

    def change(number: int) -> None:
        a.dtype = dtypes[number % len(dtypes)]

    with beside(change):
        for _ in range(60):
            arrived = sent(a)
            assert arrived.dtype in dtypes
            assert (arrived.reshape(-1).view(np.int64) == numbers).all()


CRASHES = """
    import sys
    import threading
    import warnings
    from multiprocessing.reduction import ForkingPickler
    import numpy as np
    import mp_all as mp

    warnings.simplefilter("ignore", DeprecationWarning)
    change, nbytes = sys.argv[1], int(sys.argv[2])
    if __name__ == "__main__":
        count = nbytes // 8
        a = np.zeros(count)
        other = np.ones(count).__reduce__()[2]
        stop = False

        def resize(number):
            a.resize(count + number % 2 * count, refcheck=False)

        def set_state(number):
            a.__setstate__(other)

        def set_dtype(number):
            a.dtype = [f"M8[{number % 4000 + 2}s]", f"M8[{number % 3000 + 3}ms]", "f8"][number % 3]

        def run():
            number = 0
            while not stop:
                locals_of[change](number)
                number += 1

        locals_of = {"resize": resize, "state": set_state, "dtype": set_dtype}
        threads = [threading.Thread(target=run) for _ in range(2 if change != "resize" else 1)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            for sent in (a, (a, 1)):
                arrived = ForkingPickler.loads(ForkingPickler.dumps(sent))
                arrived = arrived if sent is a else arrived[0]
                assert arrived.nbytes in (nbytes, 2 * nbytes), arrived.nbytes
        stop = True
        for thread in threads:
            thread.join()
        print(mp.memory_stats()["in_flight_bytes"])
"""


@pytest.mark.parametrize("nbytes", [80_000, 1 << 20, 8 << 20])
@pytest.mark.parametrize("change", ["resize", "state", "dtype"])
def test_memory_that_another_thread_moves_or_frees_is_copied_first(tmp_path: Any, change: str, nbytes: int) -> None:
    assert succeeded(run_script(tmp_path, CRASHES, change, str(nbytes))) == "0\n"


def test_two_threads_send_one_array_that_a_third_resizes(strategy: str) -> None:
    a = np.zeros(1 << 18)
    sizes = []

    def send() -> None:
        sizes.extend(as_sent(a).size for _ in range(100))

    with beside(lambda number: a.resize((1 << 18) + number % 3 * 1000, refcheck=False)):
        senders = [threading.Thread(target=send) for _ in range(2)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert set(sizes) <= {(1 << 18) + more for more in (0, 1000, 2000)}
    assert len(sizes) == 200


def test_an_array_has_its_own_memory_handler_again_after_it_was_sent() -> None:
    multiarray = importlib.import_module("numpy._core.multiarray" if np.__version__ >= "2" else "numpy.core.multiarray")
    a = np.zeros(1 << 20)
    before = multiarray.get_handler_name(a)
    for _ in range(3):
        as_sent(a)
        as_sent(a[::2])
    assert multiarray.get_handler_name(a) == before


def test_a_child_forked_while_a_thread_copies_may_resize_the_array() -> None:
    a = np.zeros(1 << 21)

    def resize() -> None:
        a.resize(10, refcheck=False)

    with beside(lambda number: as_sent(a)):
        for _ in range(30):
            child = mp.get_context("fork").Process(target=resize)
            child.start()
            child.join(30)
            assert child.exitcode == 0
            child.close()


class Subclass(np.ndarray): ...


@pytest.mark.parametrize("n", [30, 6_000, 300_000])
def test_an_array_of_a_subclass_is_not_resized_between_its_reduction_and_the_copy_of_its_bytes(n: int) -> None:
    a = np.ones(n).view(Subclass).copy()
    a.flags.writeable = False
    reducer: Any = importlib.import_module("mp_core.system.reducers").install()[Subclass]
    reduced = reducer(a)
    with pytest.raises(ValueError, match="resize"):
        a.resize(10 * n, refcheck=False)
    del reduced
    a.flags.writeable = True
    a.resize(10 * n, refcheck=False)
    assert a.size == 10 * n
