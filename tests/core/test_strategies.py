"""Sharing strategies: queried, set, inherited, and without effect on memory that is already shared."""

from __future__ import annotations

import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from support import tasks
from support.carriers import TIMEOUT, Carrier
from support.scripts import run_python, run_script, succeeded

import mp_all as mp


def tell_strategy(connection) -> None:
    connection.send((mp.get_sharing_strategy(), mp.Block(1).strategy))


def relay(incoming, outgoing) -> None:
    outgoing.send(incoming.recv())


def test_linux_has_both() -> None:
    assert mp.get_all_sharing_strategies() == {"file_descriptor", "file_system"}


def test_the_set_of_strategies_is_the_callers_own() -> None:
    mp.get_all_sharing_strategies().clear()
    assert mp.get_all_sharing_strategies()


def test_a_new_setting_is_in_force(strategy: str) -> None:
    assert mp.get_sharing_strategy() == strategy
    assert mp.Block(1).strategy == strategy


@pytest.mark.parametrize("name", ["", "file-system", "FILE_SYSTEM", "memfd", "file_system "])
def test_an_unknown_strategy_is_a_value_error_that_lists_the_valid_ones(strategy: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"file_descriptor.*file_system") as caught:
        mp.set_sharing_strategy(name)
    assert repr(name) in str(caught.value)
    assert mp.get_sharing_strategy() == strategy


@pytest.mark.parametrize("name", [None, 3, b"file_system", ["file_system"]])
def test_a_strategy_that_is_not_text_is_refused(strategy: str, name: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        mp.set_sharing_strategy(name)
    assert mp.get_sharing_strategy() == strategy


@pytest.mark.parametrize("name", ["file_descriptor", "file_system"])
def test_the_environment_sets_the_initial_value(name: str) -> None:
    program = "import mp_all; print(mp_all.get_sharing_strategy(), mp_all.Block(1).strategy)"
    assert succeeded(run_python("-c", program, MP_SHARING_STRATEGY=name)) == f"{name} {name}\n"


def test_the_default_is_file_descriptor() -> None:
    program = """
import os
os.environ.pop("MP_SHARING_STRATEGY", None)
import mp_all
print(mp_all.get_sharing_strategy())
"""
    assert succeeded(run_python("-c", program)) == "file_descriptor\n"


def test_a_wrong_environment_is_an_error_that_names_variable_and_values() -> None:
    done = run_python("-c", "import mp_all", MP_SHARING_STRATEGY="nonsense")
    assert done.returncode == 1
    for word in ("MP_SHARING_STRATEGY", "nonsense", "file_descriptor", "file_system"):
        assert word in done.stderr


def test_a_child_inherits_the_current_strategy(ctx, strategy: str) -> None:
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=tell_strategy, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.poll(TIMEOUT)
    assert ours.recv() == (strategy, strategy)
    ours.close()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    process.close()


def test_a_change_in_a_child_does_not_affect_its_parent(echo: Carrier, strategy: str) -> None:
    (other,) = mp.get_all_sharing_strategies() - {strategy}
    echo.call(mp.set_sharing_strategy, other)
    try:
        assert mp.get_sharing_strategy() == strategy
        result = echo.call(tasks.make_and_keep, (10,), 1.0)
        result[...] = 2
        assert echo.call(tasks.kept_values) == [[2] * 10]
    finally:
        echo.call(mp.set_sharing_strategy, strategy)


def test_messages_in_flight_survive_a_change(strategy: str) -> None:
    (other,) = mp.get_all_sharing_strategies() - {strategy}
    shared, private = mp.shared.array(np.arange(10)), np.arange(1 << 17)
    message = ForkingPickler.dumps((shared, private))
    mp.set_sharing_strategy(other)
    back = ForkingPickler.loads(message)
    assert np.shares_memory(back[0], shared)
    assert np.array_equal(back[1], private)


def test_a_process_relays_memory_of_the_other_strategy(ctx, strategy: str) -> None:
    (other,) = mp.get_all_sharing_strategies() - {strategy}
    array = mp.shared.zeros(1000)
    mp.set_sharing_strategy(other)
    incoming, ours_out = ctx.Pipe(duplex=False)
    ours_in, outgoing = ctx.Pipe(duplex=False)
    process = ctx.Process(target=relay, args=(incoming, outgoing))
    process.start()
    ours_out.send(array)
    assert ours_in.poll(TIMEOUT)
    result = ours_in.recv()
    result[...] = 1
    assert (array == 1).all()
    process.join(TIMEOUT)
    process.close()
    for end in (incoming, outgoing, ours_in, ours_out):
        end.close()


def test_only_file_system_has_names(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, re
        import mp_all as mp

        block = mp.Block(1 << 20)
        with open("/proc/self/maps") as maps:
            for name in sorted({m[0] for m in re.finditer("/dev/shm/mpshm-[0-9a-f]+", maps.read())}):
                print(oct(os.stat(name).st_mode & 0o777), os.stat(name).st_uid == os.geteuid())
    """
    lines = succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)).splitlines()
    if strategy == "file_system":
        assert lines
        assert set(lines) == {"0o600 True"}
    else:
        assert lines == []


def test_threads_may_change_it_while_others_allocate(strategy: str) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def allocate() -> None:
        try:
            while not stop.is_set():
                assert mp.Block(100).strategy in mp.get_all_sharing_strategies()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        for name in sorted(mp.get_all_sharing_strategies()):
            mp.set_sharing_strategy(name)
            mp.Block(10)
    stop.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert errors == []
