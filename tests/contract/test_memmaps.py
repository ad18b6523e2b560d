"""A memmap is its file and not its path: the sender's bytes arrive, whatever was done to the path, or an error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier, ProcessCarrier
from support.scripts import run_script, succeeded

import mp_all as mp
import mp_spawn

OLD, NEW = 7, 99
COUNT = 40_000


def make(path: Path, value: int = OLD, count: int = COUNT) -> Path:
    np.full(count, value, np.uint8).tofile(path)
    return path


def replace(path: Path) -> None:
    os.replace(make(path.with_name("new"), NEW), path)


def replace_by_a_shorter_file(path: Path) -> None:
    path.with_name("new").write_bytes(b"short")
    os.replace(path.with_name("new"), path)


def switch_a_link(path: Path) -> None:
    """The path is a link, which leads to another file now."""
    path.with_name("other").symlink_to(make(path.with_name("new"), NEW))
    os.replace(path.with_name("other"), path)


def delete(path: Path) -> None:
    path.unlink()


def make_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_named_pipe_there(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def delete_and_make_again(path: Path) -> None:
    """The new file may get the inode number of the old one."""
    path.unlink()
    make(path, NEW)


CHANGES = (
    replace,
    replace_by_a_shorter_file,
    switch_a_link,
    delete,
    make_a_folder_there,
    make_a_named_pipe_there,
    delete_and_make_again,
)
changes = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


def of_path(path: Path) -> Any:
    """Return what a test can compare: nothing may write to the path's file."""
    return path.read_bytes() if path.is_file() else None


@changes
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_the_senders_bytes_arrive_when_the_path_leads_elsewhere(
    echo: Carrier, tmp_path: Path, change: Callable[[Path], None], mode: Any
) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, mode, offset=4097, shape=(30, 1000))[::-1, ::3]
    change(tmp_path / "numbers")
    before = of_path(tmp_path / "numbers")
    arrived = echo.call(tasks.echo, mapped)
    assert type(arrived) is np.memmap
    assert (arrived == OLD).all()
    assert arrived.shape == mapped.shape
    assert arrived.flags.writeable == (mode == "r+")
    if arrived.flags.writeable:
        arrived[...] = 1
        assert (mapped == OLD).all()
    assert of_path(tmp_path / "numbers") == before


def test_every_channel_brings_the_senders_bytes_and_writes_to_no_other_file(carrier: Carrier, tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r+")
    replace_by_a_shorter_file(tmp_path / "numbers")
    arrived = carrier.call(tasks.echo, {"a": [mapped]})["a"][0]
    assert np.array_equal(arrived, mapped)
    carrier.call(tasks.fill, mapped, 3)
    assert (tmp_path / "numbers").read_bytes() == b"short"
    is_inherited = isinstance(carrier, ProcessCarrier) and carrier.ctx.get_start_method() == "fork"
    assert (mapped == (3 if is_inherited else OLD)).all()


@changes
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_replaced_under_way_is_an_error_that_names_it(
    strategy: str, tmp_path: Path, change: Callable[[Path], None], mode: Any
) -> None:
    message = ForkingPickler.dumps(np.memmap(make(tmp_path / "numbers"), np.uint8, mode))
    change(tmp_path / "numbers")
    before = of_path(tmp_path / "numbers")
    with pytest.raises(mp.ReceiveError, match=r"memory-mapped.*numbers"):
        ForkingPickler.loads(message)
    assert of_path(tmp_path / "numbers") == before


def test_a_file_made_again_with_the_same_inode_number_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    for _ in range(50):
        message = ForkingPickler.dumps(np.memmap(make(path), np.uint8, "r"))
        path.unlink()
        make(path, NEW)
        with pytest.raises(mp.ReceiveError, match="another file"):
            ForkingPickler.loads(message)


@pytest.mark.parametrize("left", [0, 1, 5, 4096, COUNT - 1])
def test_a_file_shortened_under_way_is_an_error_and_keeps_its_length(tmp_path: Path, left: int) -> None:
    message = ForkingPickler.dumps(np.memmap(make(tmp_path / "numbers"), np.uint8, "r+"))
    os.truncate(tmp_path / "numbers", left)
    with pytest.raises(mp.ReceiveError, match=f"shortened to {left} bytes"):
        ForkingPickler.loads(message)
    assert (tmp_path / "numbers").stat().st_size == left


def test_a_file_shortened_before_it_is_sent_is_an_error_in_the_sender(tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r")
    private = np.memmap(tmp_path / "numbers", np.uint8, "c")
    os.truncate(tmp_path / "numbers", 5000)
    for unreadable in (mapped, private, mapped[8192:]):
        with pytest.raises(ValueError, match="shortened to 5000 bytes"):
            ForkingPickler.dumps(unreadable)
        mp.set_sharing(False)
        try:
            with pytest.raises(ValueError, match="shortened to 5000 bytes"):
                ForkingPickler.dumps(unreadable)
        finally:
            mp.set_sharing(True)
    (tmp_path / "numbers").unlink()
    with pytest.raises(ValueError, match="shortened to 5000 bytes"):
        ForkingPickler.dumps(mapped)
    assert (ForkingPickler.loads(ForkingPickler.dumps(mapped[:5000])) == OLD).all()


def test_a_file_that_has_grown_is_still_that_file(echo: Carrier, tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r+")
    with (tmp_path / "numbers").open("ab") as file:
        file.write(b"more")
    echo.call(tasks.fill, mapped, 3)
    assert (mapped == 3).all()
    assert (tmp_path / "numbers").stat().st_size == COUNT + 4


def test_a_file_that_was_moved_and_linked_back_is_still_that_file(echo: Carrier, tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r+")
    (tmp_path / "numbers").rename(tmp_path / "moved")
    (tmp_path / "numbers").symlink_to(tmp_path / "moved")
    echo.call(tasks.fill, mapped, 3)
    assert (mapped == 3).all()


def test_a_received_memmap_is_sent_on_by_the_same_rules(echo: Carrier, tmp_path: Path) -> None:
    arrived = echo.call(tasks.echo, np.memmap(make(tmp_path / "numbers"), np.uint8, "r+", offset=1234))
    echo.call(tasks.fill, arrived[2000:], 3)
    assert (arrived[2000:] == 3).all()
    replace(tmp_path / "numbers")
    echo.call(tasks.fill, arrived, 5)
    assert (arrived[:2000] == OLD).all()
    assert (np.fromfile(tmp_path / "numbers", np.uint8) == NEW).all()


def test_a_temporary_file_that_was_closed_arrives(carrier: Carrier) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes([OLD]) * COUNT)
        file.flush()
        mapped = np.memmap(file.name, np.uint8, "r")
    assert (carrier.call(tasks.echo, mapped) == OLD).all()


def value_of(mapped: Any, _: Any = None) -> list[int]:
    return np.unique(mapped).tolist()


def test_partial_functions_and_maps_bring_the_senders_bytes(ctx: Any, strategy: str, tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r+")
    replace(tmp_path / "numbers")
    with ctx.Pool(2) as pool:
        assert pool.map(partial(value_of, mapped), range(4)) == [[OLD]] * 4
        assert list(pool.imap(value_of, [mapped] * 4)) == [[OLD]] * 4
        assert pool.starmap(value_of, [(mapped, 0)] * 4) == [[OLD]] * 4
    with ProcessPoolExecutor(2, mp_context=ctx) as executor:
        assert list(executor.map(value_of, [mapped] * 4)) == [[OLD]] * 4


def rank_value_of(rank: int, mapped: Any) -> list[int]:
    return value_of(mapped)


def test_the_launcher_brings_every_rank_the_senders_bytes(start_method: str, strategy: str, tmp_path: Path) -> None:
    mapped = np.memmap(make(tmp_path / "numbers"), np.uint8, "r+")
    assert mp_spawn.run(rank_value_of, (mapped,), nprocs=3, start_method=start_method) == [[OLD]] * 3
    replace_by_a_shorter_file(tmp_path / "numbers")
    assert mp_spawn.run(rank_value_of, (mapped,), nprocs=3, start_method=start_method) == [[OLD]] * 3
    assert (tmp_path / "numbers").read_bytes() == b"short"


PROGRAM = """
    import os
    import numpy as np
    import mp_all as mp

    def child(pipe):
        while (a := pipe.recv()) is not None:
            pipe.send(a.tolist())
            if a.flags.writeable:
                a[...] = 1

    if __name__ == "__main__":
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(target=child, args=(there,))
        process.start()
        np.full(100_000, 7, np.uint8).tofile("numbers")
        mapped = np.memmap("numbers", np.uint8, "r+")
        with open("new", "wb") as file:
            file.write(b"short")
        os.replace("new", "numbers")
        here.send(mapped)
        assert set(here.recv()) == {7}
        assert open("numbers", "rb").read() == b"short"
        os.unlink("numbers")
        here.send(mapped)
        assert set(here.recv()) == {7}
        here.send(None)
        process.join(30)
        print(process.exitcode)
"""


@pytest.mark.parametrize("without", ["0", "1"], ids=["libshm", "portable sharing"])
def test_a_program_saves_over_a_file_that_it_has_mapped(tmp_path: Path, without: str) -> None:
    strategy = {} if without == "0" else {"MP_SHARING_STRATEGY": "file_system"}
    assert succeeded(run_script(tmp_path, PROGRAM, MP_WITHOUT_LIBSHM=without, **strategy)) == "0\n"
