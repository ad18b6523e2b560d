"""A private array arrives although its receiver cannot share memory; a shared array fails there with the reason."""

from __future__ import annotations

import errno
import pickle
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.carriers import Carrier
from support.scripts import run_script, succeeded
from support.unreceivable import refuse_blocks

import mp_all as mp
from mp_core.sharing import backend
from mp_core.system import errors

F = mp.reduction.ForkingPickler
FAULTS = {
    "descriptors": errno.EMFILE,
    "slots": errno.EUSERS,
    "manager": errno.ETIMEDOUT,
    "another user": errno.EACCES,
    "address space": errno.ENOMEM,
    "folder": errno.ENOENT,
}


class Tagged(np.ndarray):
    """A subclass that pickles as NumPy does."""


class Counted(np.ndarray):
    """A subclass with methods of its own."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)


class Offers:
    """Offers pickle an out-of-band buffer."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        return Offers, (pickle.PickleBuffer(self.data),)


def large() -> np.ndarray:
    return np.arange(90_000.0)


FORMS = {
    "plain": large,
    "two axes": lambda: large().reshape(300, 300),
    "fortran order": lambda: large().reshape(300, 300).T,
    "every other": lambda: large()[::2],
    "backwards": lambda: large()[::-1],
    "structured": lambda: np.zeros(20_000, [("a", "i4"), ("b", ">f8")]),
    "masked": lambda: np.ma.masked_less(large(), 5),
    "a subclass": lambda: large().view(Tagged),
    "a customised subclass": lambda: large().view(Counted),
    "text": lambda: np.full(20_000, "abc"),
}


@pytest.fixture(params=FAULTS)
def refused(request: pytest.FixtureRequest) -> Iterator[int]:
    refuse_blocks(FAULTS[request.param])
    yield FAULTS[request.param]
    refuse_blocks(0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::mp_all.SharedMemoryWarning")
def test_a_private_array_that_cannot_be_shared_arrives_by_value(strategy: str, refused: int, form: str) -> None:
    array = FORMS[form]()
    message = F.dumps([array, 7])
    back, seven = F.loads(message)
    assert (type(back), back.dtype, back.shape, seven) == (type(array), array.dtype, array.shape, 7)
    assert back.tolist() == array.tolist()
    assert back.flags.writeable
    assert not mp.is_shared(back)
    back[...] = back[0].copy()
    assert mp.memory_stats()["in_flight_bytes"] == 0


@pytest.mark.filterwarnings("ignore::mp_all.SharedMemoryWarning")
def test_a_read_only_one_stays_so(strategy: str, refused: int) -> None:
    array = large()
    array.flags.writeable = False
    back = F.loads(F.dumps(array))
    assert back.tolist() == array.tolist()
    assert not back.flags.writeable


@pytest.mark.filterwarnings("ignore::mp_all.SharedMemoryWarning")
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_buffer_that_cannot_be_shared_arrives_by_value(strategy: str, refused: int, kind: Any) -> None:
    back = F.loads(F.dumps(Offers(kind(b"ab" * 50_000))))
    assert bytes(back.data) == b"ab" * 50_000
    assert memoryview(back.data).readonly == (kind is bytes)


def test_a_shared_array_fails_and_says_why(strategy: str, refused: int) -> None:
    for thing in (mp.shared.zeros(100_000), mp.shared.zeros((300, 300)).T, mp.Block(1000), mp.Lease(int)):
        with pytest.raises(mp.ReceiveError) as caught:
            F.loads(F.dumps(thing))
        assert caught.value.errno == refused
        assert "used before" not in str(caught.value)


def test_damaged_and_used_messages_are_not_tried_again(strategy: str) -> None:
    message = F.dumps(large())
    F.loads(message)
    with pytest.raises(mp.ReceiveError, match="used before"):
        F.loads(message)


def received_in_a_child(number: int, array: Any) -> Any:
    refuse_blocks(0)
    return float(np.sum(array)), mp.is_shared(array), array.flags.writeable


def begin(number: int) -> None:
    refuse_blocks(number)


def test_a_child_that_cannot_share_receives_private_arrays(echo: Carrier) -> None:
    echo.call(begin, errno.EMFILE)
    assert echo.call(received_in_a_child, 0, large()) == (float(large().sum()), False, True)
    # It can again.
    assert echo.call(received_in_a_child, 0, large()) == (float(large().sum()), True, True)


def test_the_warning_comes_once_at_the_line_that_receives(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_told", set())
    reader, writer = mp.Pipe(False)
    refuse_blocks(errno.EMFILE)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                writer.send(large())
                reader.recv()
    finally:
        refuse_blocks(0)
    (warning,) = caught
    assert warning.category is mp.SharedMemoryWarning
    assert warning.filename == __file__
    assert "no descriptor left" in str(warning.message)
    reader.close()
    writer.close()


def test_a_filter_that_turns_warnings_into_errors_loses_no_message(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_told", set())
    refuse_blocks(errno.EMFILE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert F.loads(F.dumps(large())).tolist() == large().tolist()
    finally:
        refuse_blocks(0)


WITHOUT_DESCRIPTORS = """
    import os, resource, sys
    import numpy as np
    import mp_all as mp

    def no_descriptors():
        taken = []
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    def total(array):
        return float(np.sum(array))

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        make = mp.shared.ones if sys.argv[2] == "shared" else np.ones
        outcomes = set()
        with ctx.Pool(1, initializer=no_descriptors) as pool:
            tasks = [pool.apply_async(total, (make(50_000),)) for _ in range(4)]
            for task in tasks:
                try:
                    outcomes.add(task.get(50))
                except mp.ReceiveError as error:
                    outcomes.add(error.errno)
            assert pool.apply_async(len, ("abc",)).get(50) == 3
            pool.close()
            pool.join()
        print(*outcomes)
"""


def test_a_worker_without_descriptors_answers_every_task(tmp_path: Path, strategy: str, start_method: str) -> None:
    done = run_script(tmp_path, WITHOUT_DESCRIPTORS, start_method, "shared", MP_SHARING_STRATEGY=strategy)
    assert done.stdout.split() in ([str(errno.EMFILE)], ["50000.0"]), done.stderr


def test_a_worker_without_descriptors_receives_private_arrays(tmp_path: Path, strategy: str, start_method: str) -> None:
    done = run_script(tmp_path, WITHOUT_DESCRIPTORS, start_method, "private", MP_SHARING_STRATEGY=strategy)
    assert done.stdout.split() == ["50000.0"], done.stderr


WITHOUT_FOLDER = """
    import os, shutil, sys
    import numpy as np
    import mp_all as mp

    def total(inbox, outbox):
        outbox.put("ready")
        try:
            outbox.put(float(np.sum(inbox.get())))
        except Exception as error:
            outbox.put(error)

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        mp.Block(1000)
        ctx.Pool(1).terminate()  # what starts children is there
        shutil.rmtree(os.environ["MPSHM_RUNTIME_DIR"] + f"/mpshm-{os.geteuid()}", ignore_errors=True)
        inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
        child = ctx.Process(target=total, args=(inbox, outbox))
        child.start()
        outbox.get()
        inbox.put(np.ones(50_000))
        print(outbox.get())
        child.join()
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_child_that_begins_when_the_folder_was_removed_receives_private_arrays(
    tmp_path: Path, strategy: str, start_method: str
) -> None:
    environment = {"MP_SHARING_STRATEGY": strategy, "MPSHM_RUNTIME_DIR": str(tmp_path)}
    done = run_script(tmp_path, WITHOUT_FOLDER, start_method, **environment)
    # Without libshm the locks are in the folder, so the array goes by value, with a warning.
    assert (succeeded(done) if backend.LIBSHM else done.stdout) == "50000.0\n", done.stderr
    assert backend.LIBSHM or done.stderr.count("SharedMemoryWarning") == 1, done.stderr


def lower_the_limit(count: int) -> None:
    """Allow fewer descriptors than are open, so that none can be opened, even if others are closed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def changed(thing: Any) -> Any:
    return thing[:10] + thing[10:] if isinstance(thing, bytes) else thing + 1


@pytest.mark.skipif(not backend.LIBSHM, reason="without libshm, each segment is received by a descriptor")
@pytest.mark.parametrize("count", [3, 6])
def test_a_private_array_arrives_where_the_limit_of_descriptors_was_lowered_below_those_open(
    ctx: Any, strategy: str, count: int
) -> None:
    array = np.arange(200_000.0)
    with ctx.Pool(1, lower_the_limit, (count,)) as pool:
        for sent in (array, array[::-3], array.reshape(400, 500).T):
            for _ in range(3):
                assert (pool.apply(changed, (sent,)) == sent + 1).all()
        assert pool.apply(changed, (b"x" * 500_000,)) == b"x" * 500_000
        assert (pool.apply(changed, (read_only(array),)) == array + 1).all()


def read_only(array: np.ndarray) -> np.ndarray:
    """Return an array that needs its reducer."""
    array = array.copy()
    array.flags.writeable = False
    return array
