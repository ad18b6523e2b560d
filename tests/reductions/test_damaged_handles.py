"""A truncated, altered or forged handle is an exception: never a crash, never another process's bytes.

Another process makes the attempts and reports the result of each; it must still be alive at the end.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scripts import run_script

import mp_all as mp

# An attack by one wrong byte. The seed makes the values the same on each run.
ATTEMPTS = """
    import io, os, pickle, random, resource, sys
    from multiprocessing.reduction import ForkingPickler
    import numpy as np
    import mp_all as mp

    # A flipped length may ask pickle for gigabytes: let it be refused, here or by the sanitizer's own limit.
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    chance = random.Random(7)

    def attempts(data):
        for at in range(len(data)):
            yield data[:at]
            for wrong in {0, 255, data[at] ^ 1, data[at] ^ 128, chance.randrange(256)} - {data[at]}:
                yield data[:at] + bytes([wrong]) + data[at + 1:]

    def look(thing):
        "Touch every byte that the result claims to have."
        if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            thing.tobytes()
        elif isinstance(thing, mp.Block):
            bytes(thing)

    def closed_world(data):
        "An unpickler without the rest of Python: a flipped name must not call some other function."
        class Unpickler(pickle.Unpickler):
            def find_class(self, module, name):
                if (module, name) in NAMES:
                    return super().find_class(module, name)
                raise pickle.UnpicklingError(f"no {module}.{name}")
        return Unpickler(io.BytesIO(data)).load()

    NAMES = set()
    class Names(pickle.Unpickler):
        def find_class(self, module, name):
            NAMES.add((module, name))
            return super().find_class(module, name)

    refused = accepted = 0
    thing = MAKE
    def message():
        return bytes(ForkingPickler.dumps(thing))
    Names(io.BytesIO(message())).load()
    first = message()
    for number, data in enumerate(attempts(first)):
        print(number, end=" ", file=sys.stderr, flush=True)
        try:
            look(closed_world(data))
            accepted += 1
        except Exception:
            refused += 1
    # After all that the true handle is still good.
    back = ForkingPickler.loads(message())
    assert np.asarray(back).tobytes() == np.asarray(thing).tobytes()
    print(refused, accepted, len(first))
"""
THINGS = {
    "block": "mp.Block(100)",
    "shared array": "mp.shared.array(np.arange(24.0).reshape(4, 6))",
    "shared view": "mp.shared.array(np.arange(24.0).reshape(4, 6))[::-1, ::2]",
    "large private array": "np.arange(1 << 16)",
    "small private array": "np.arange(10.0)",
}


def reduced(thing: Any) -> tuple[Any, tuple]:
    """
    Return the function and the arguments that a message has for *thing*.
    """
    function, arguments = ForkingPickler(io.BytesIO()).dispatch_table[type(thing)](thing)
    return function, arguments


@pytest.mark.parametrize("make", THINGS.values(), ids=THINGS)
def test_no_wrong_byte_in_a_message_ends_the_process(tmp_path: Path, strategy: str, make: str) -> None:
    done = run_script(tmp_path, ATTEMPTS.replace("MAKE", make), MP_SHARING_STRATEGY=strategy)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-3000:]}"
    refused, accepted, length = map(int, done.stdout.split())
    assert refused + accepted > 2 * length
    assert refused >= length, "every truncated message has to be refused"


WRONG = [
    None,
    0,
    -1,
    1,
    2**31,
    2**62,
    -(2**70),
    1.5,
    "",
    "file_system",
    b"",
    b"\0" * 16,
    (),
    (0,),
    [],
    {},
    object,
]


def forgeries(arguments: tuple) -> Iterator[tuple]:
    """
    Each argument in turn is something else.
    """
    for position, true in enumerate(arguments):
        for wrong in WRONG:
            if type(wrong) is not type(true) or wrong != true:
                yield *arguments[:position], wrong, *arguments[position + 1 :]


@pytest.mark.parametrize("nbytes", [0, 100])
def test_a_forged_handle_of_a_block_is_refused(strategy: str, nbytes: int) -> None:
    block = mp.Block(nbytes)
    function, arguments = reduced(block)
    function(*arguments)
    number = sum(1 for _ in forgeries(arguments))
    for chosen in range(number):
        function, arguments = reduced(block)
        forged = next(itertools.islice(forgeries(arguments), chosen, None))
        with pytest.raises((ValueError, mp.ReceiveError, TypeError)):
            function(*forged)
        # The true one is spent, whether the forged one got that far or not.
        with contextlib.suppress(ValueError, mp.ReceiveError):
            function(*arguments)
    assert ForkingPickler.loads(ForkingPickler.dumps(block)).nbytes == nbytes


@pytest.mark.parametrize("make", [mp.Block, mp.shared.zeros])
def test_a_handle_used_again_frees_nothing(strategy: str, make: Any) -> None:
    thing = make(100)
    message = bytes(ForkingPickler.dumps(thing))
    for _ in range(5):
        with contextlib.suppress(ValueError, mp.ReceiveError):
            again = ForkingPickler.loads(message)
            assert np.shares_memory(np.asarray(again), np.asarray(thing))
            del again
    # The memory still belongs to its holder, and can still be sent.
    back = ForkingPickler.loads(ForkingPickler.dumps(thing))
    np.asarray(back)[...] = 1
    assert np.asarray(thing).tolist() == [1] * 100


# NumPy 1.26 takes None for the shape () and says that it will not for long.
@pytest.mark.filterwarnings("ignore:Passing None into shape:DeprecationWarning")
def test_a_forged_handle_of_an_array_never_reaches_beyond_its_block(strategy: str) -> None:
    array = mp.shared.array(np.arange(24.0).reshape(4, 6))[::-1, ::2]
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    function, arguments = reduced(array)
    for position in range(len(arguments)):
        for wrong in [
            *WRONG,
            (2**40,),
            (4, 2**62),
            (-1,),
            "O",
            "f16",
            "V100000",
            (8, 8),
            (10**9, 8),
            (-8, -8),
        ]:
            forged = [*arguments]
            forged[position] = wrong
            try:
                result = function(*forged)
            except (ValueError, mp.ReceiveError, TypeError, MemoryError):
                continue
            assert isinstance(result, np.ndarray)
            assert not result.dtype.hasobject
            assert result.size < 10**9
            result.tobytes()
    assert high > low


@pytest.mark.parametrize("make", [mp.Block, mp.shared.zeros])
def test_a_handle_of_freed_memory_is_refused(strategy: str, make: Any) -> None:
    made = make(100)
    message = bytes(ForkingPickler.dumps(made))
    ForkingPickler.loads(message)
    del made
    mp.empty_cache()
    with pytest.raises((ValueError, mp.ReceiveError)):
        pickle.loads(message)


def spoilt(handle: bytes) -> Iterator[bytes]:
    """
    Every truncation, every bit flipped, every byte doubled, and nonsense of the same length.
    """
    yield from (handle[:length] for length in range(len(handle)))
    yield from (
        handle[:at] + bytes([handle[at] ^ 1 << bit]) + handle[at + 1 :] for at in range(len(handle)) for bit in range(8)
    )
    yield from (handle[:at] + handle[at : at + 1] + handle[at:] for at in range(len(handle)))
    yield from (bytes(len(handle)), b"\xff" * len(handle), handle[::-1], handle * 2)
    yield from (np.random.default_rng(seed).bytes(len(handle)) for seed in range(100))


def test_no_altered_handle_passes_for_a_true_one(strategy: str) -> None:
    block = mp.Block(100)
    function, arguments = reduced(block)
    (position,) = (i for i, argument in enumerate(arguments) if isinstance(argument, bytes))
    for wrong in spoilt(arguments[position]):
        with pytest.raises((ValueError, mp.ReceiveError)):
            function(*arguments[:position], wrong, *arguments[position + 1 :])
    # None of them has spent the true one.
    memoryview(function(*arguments))[0] = 7
    assert memoryview(block)[0] == 7
