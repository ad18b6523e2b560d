"""A tensor in a small message is written and read in C, with the same semantics as by its reducer."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier
from support.other_table import importing_with_another_table
from support.readers import by_unpickler, in_c
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_core.sharing import backend
from mp_reductions._functions import swap_memory

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

from mp_torch import _functions, storage  # noqa: E402

READERS = pytest.mark.parametrize("loads", [in_c, by_unpickler], ids=["in C", "by the unpickler"])


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


@READERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_it_arrives_as_the_same_memory(strategy: str, loads: Callable[[Any], Any], dtype: Any) -> None:
    sent = torch.ones(3, 1, 5, dtype=dtype)
    view = sent[1]
    for message in sent, (1, sent), {"x": [sent]}:
        data = backend.plain_pickle(message)
        pickletools.dis(data, out=io.StringIO())
        assert b"rebuild_one" in data
        got = loads(data)
        tensor = got if message is sent else got[1] if isinstance(got, tuple) else got["x"][0]
        assert (tensor.dtype, tensor.shape, tensor.requires_grad) == (dtype, sent.shape, False)
        assert tensor.untyped_storage()._cdata == sent.untyped_storage()._cdata  # torch has one storage for it
        assert tensor.data_ptr() == sent.data_ptr() == view.data_ptr() - view.storage_offset() * sent.element_size()
    assert sent.is_shared()


def test_another_process_shares_it(echo: Carrier) -> None:
    sent = torch.zeros(2, 3)
    back = echo.call(tasks.echo, (7, sent))
    back[1][0] = 5
    assert sent.tolist() == [[5, 5, 5], [0, 0, 0]]


def set_up(is_shared: Any) -> None:
    _functions.setup_storages(
        storage.EXCHANGE, torch.Tensor, torch.UntypedStorage, is_shared, storage._adopt, storage._count_users
    )


def with_hook() -> Any:
    tensor = torch.ones(3, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    return tensor


def leaves() -> list[Any]:
    frozen = torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)
    number = torch.nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    trained = torch.nn.Parameter(torch.ones(3))
    trained.grad = torch.ones(3)
    return [trained, frozen, number, torch.ones(3, requires_grad=True)]


@READERS
def test_leaves_and_parameters_arrive_as_with_torch(strategy: str, loads: Callable[[Any], Any]) -> None:
    sent = leaves()
    data = backend.plain_pickle(sent)
    pickletools.dis(data, out=io.StringIO())
    assert bytes(data).count(b"rebuild_one") >= 1
    for got, before in zip(loads(data), sent, strict=True):
        assert (type(got), got.requires_grad, got.is_leaf) == (type(before), before.requires_grad, True)
        assert got.grad is None and got.data_ptr() == before.data_ptr() and torch.equal(got, before)
        if got.requires_grad:
            got.sum().backward()
            assert got.grad.tolist() == [1] * 3
    with pytest.raises(ValueError, match="damaged"):
        data = bytes(backend.plain_pickle(sent[1]))
        loads(data.replace(b"\x02\x20\x02\x02", b"\x02\x20\x02\x04"))
    assert in_flight() == 0


def others() -> dict[str, Callable[[], Any]]:
    base = torch.arange(12.0)
    return {
        "a part of a storage": lambda: base[:4],
        "not contiguous": lambda: torch.ones(3, 4).t(),
        "with a hook of its gradient": with_hook,
        "no leaf": lambda: torch.ones(3, requires_grad=True) * 2,
        "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
        "negative": lambda: torch._neg_view(torch.ones(3)),
        "empty": lambda: torch.ones(0),
        "a part of a parameter's storage": lambda: torch.nn.Parameter(base[:4]),
        "a dtype that DLPack lacks": lambda: torch.zeros(4, dtype=torch.float8_e5m2),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "on no device": lambda: torch.ones(3, device="meta"),
        "a key": lambda: {torch.ones(3): 1},
        "two of one storage": lambda: (base, base.view(3, 4)),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", others())
def test_others_take_the_reducer(name: str) -> None:
    sent = others()[name]()
    assert backend.plain_pickle(sent) is None
    assert in_flight() == 0


@READERS
def test_a_tensor_that_occurs_twice_is_one_object_there(strategy: str, loads: Callable[[Any], Any]) -> None:
    sent = torch.ones(3)
    got = loads(backend.plain_pickle([sent, {"again": sent}]))
    assert got[0] is got[1]["again"]
    assert got[0].data_ptr() == sent.data_ptr()
    del got
    assert in_flight() == 0


def test_an_array_and_a_tensor_over_it_take_the_reducers() -> None:
    array = mp.shared.zeros(5)
    assert backend.plain_pickle((array, torch.from_numpy(array))) is None
    data = backend.plain_pickle([torch.from_numpy(array), np.ones(3)])
    got = backend.loads(data)[0]
    got[2] = 4
    assert array[2] == 4


def test_memory_that_torch_has_shared_takes_the_reducer() -> None:
    tensor = torch.UntypedStorage._new_using_fd_cpu(64)
    assert backend.plain_pickle(torch.tensor([], dtype=torch.uint8).set_(tensor)) is None


@READERS
def test_a_layout_of_another_size_is_an_error_and_frees_the_block(loads: Callable[[Any], Any]) -> None:
    sent = torch.ones(4)
    data = bytes(backend.plain_pickle(sent))
    size = (4).to_bytes(8, "little")
    assert data.count(size) == 1
    with pytest.raises(ValueError, match="damaged"):
        loads(data.replace(size, (5).to_bytes(8, "little")))
    assert in_flight() == 0
    data = bytes(backend.plain_pickle(sent))
    with pytest.raises(ValueError, match="damaged"):
        loads(data.replace(b"\x02\x20\x01\x00", b"\x02\x20\x02\x00"))
    assert in_flight() == 0


def test_a_message_that_nobody_reads_frees_its_memory(strategy: str) -> None:
    reader, writer = mp.Pipe(duplex=False)
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.send((1, torch.ones(1000)))
    writer.close()
    assert in_flight() == 0


def test_a_tensor_of_a_message_that_takes_the_pickler_is_not_moved_before() -> None:
    sent = torch.ones(1000)
    assert backend.plain_pickle((sent, {frozenset()})) is None
    assert not sent.is_shared()


def test_arrays_beside_a_part_of_a_storage_are_not_copied_twice() -> None:
    before = backend.copied_bytes(0)
    assert backend.plain_pickle((np.ones(100_000), torch.arange(12.0)[:4])) is None
    assert backend.copied_bytes(0) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_it_is_moved_is_raised_by_put(error: type) -> None:
    def fails(_: Any) -> None:
        raise error("while it is moved")

    set_up(is_shared=fails)
    queue = mp.Queue(3)
    mp.set_strict_put(True)
    try:
        with pytest.raises(error, match="while it is moved"):
            queue.put((1, torch.ones(3)))
    finally:
        mp.set_strict_put(False)
        set_up(is_shared=torch._C.StorageBase.is_shared)
    for _ in range(3):  # the failed one has no place
        queue.put((1, torch.ones(3)), block=False)
    for _ in range(3):
        queue.get()
    queue.close()
    queue.join_thread()


@pytest.fixture
def while_it_is_moved() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Return a function that sets what is called while a message is written, between two of its objects."""

    calls: list[Callable[[], object]] = []  # the process keeps the function that it is given
    set_up(is_shared=lambda _: bool(calls[0]()))
    yield calls.append
    calls.clear()
    set_up(is_shared=torch._C.StorageBase.is_shared)


def test_a_list_that_changes_while_it_is_written_arrives_as_it_was(strategy: str, while_it_is_moved: Any) -> None:
    sent = [torch.ones(3), mp.shared.full(4, 2.0), np.full(9000, 3.0), {"x": np.arange(5)}]
    while_it_is_moved(lambda: (sent[3].clear(), sent.clear())[1])
    got = backend.loads(backend.plain_pickle(sent))
    assert [got[0].tolist(), got[1].tolist(), got[2].sum(), got[3]["x"].tolist()] == [
        [1.0] * 3,
        [2.0] * 4,
        27_000,
        [0, 1, 2, 3, 4],
    ]
    assert sent == []
    del got
    assert in_flight() == 0


@pytest.mark.parametrize("change", ["moved", "resized", "reshaped"])
def test_an_array_that_changes_while_it_is_written_is_sent_whole(
    strategy: str, while_it_is_moved: Any, change: str
) -> None:
    array, other = mp.shared.full(6, 2.0), np.full(6, 3.0)
    private = np.full(600, 5.0)

    def changes() -> None:
        if change == "moved":
            swap_memory(array, other)
        elif change == "resized":
            private.resize(3, refcheck=False)
        else:
            array.shape = (2, 3)

    while_it_is_moved(changes)
    data = backend.plain_pickle([torch.ones(3), array, private])
    if data is None:  # the pickler sends it as it is now
        assert change in ("moved", "resized")
        data = ForkingPickler.dumps([array, private])
    got = backend.loads(bytes(data))
    np.testing.assert_array_equal(got[-2], array)
    np.testing.assert_array_equal(got[-1], private)
    del got
    assert in_flight() == 0


def test_a_process_that_installs_nothing_receives_it(tmp_path: Path) -> None:
    script = """
        import mp_all as mp

        def read(queue, results):
            for _ in range(3):
                got = queue.get()
                results.put((type(got).__name__, got.requires_grad, got.tolist()))

        if __name__ == "__main__":
            ctx = mp.get_context("spawn")
            queue, results = ctx.Queue(), ctx.Queue()
            process = ctx.Process(target=read, args=(queue, results))
            process.start()  # before the installation
            mp.torch_install()
            import torch
            for sent in torch.arange(3), torch.nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True):
                queue.put(sent)
                print(results.get())
            process.join()
    """
    assert succeeded(run_script(tmp_path, script)).splitlines() == [
        "('Tensor', False, [0, 1, 2])",
        "('Parameter', True, [1.0])",
        "('Tensor', True, [1.0])",
    ]


def test_another_version_of_mp_cores_table_is_refused(tmp_path: Path) -> None:
    said = succeeded(run_script(tmp_path, importing_with_another_table("mp_torch._native")))
    assert "two installations are mixed; reinstall mp-core and mp-torch" in said
