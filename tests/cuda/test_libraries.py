"""Arrays of other libraries arrive with their type; libraries that are not installed cost nothing."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import doubles
import peer as p
import pytest
from support.scripts import run_script, succeeded

import mp_cuda
from mp_cuda.arrays.array import DeviceArray

HOOK = """
    import sys
    import mp_all
    from multiprocessing.reduction import ForkingPickler

    loaded = sorted(m for m in sys.modules if m.startswith(("cuda.", "mp_cuda")))
    print(loaded)
    sys.path.insert(0, sys.argv[1])
    import cupy
    print(ForkingPickler._extra_reducers[cupy.ndarray].__module__)
    print(cupy.__spec__.loader is cupy.__loader__, type(cupy.__loader__).__name__)
    print("cuda.bindings" in sys.modules)
    try:
        import numba_that_is_not_there
    except ImportError:
        print("missing")
"""

NUMBA = """
    import sys
    import numpy as np
    import mp_all as mp
    import mp_cuda
    from numba import cuda

    def child(inbox, outbox):
        array = inbox.get()
        outbox.put((type(array).__module__, array.copy_to_host().tolist(), array.strides))
        mp_cuda.as_device_array(array).copy_from_host(np.full(array.shape, 7, array.dtype))
        outbox.put(array)
        inbox.get()

    if __name__ == "__main__":
        ctx = mp.get_context("spawn")
        inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = ctx.Process(target=child, args=(inbox, outbox))
        process.start()
        array = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
        inbox.put(array[:, ::2])
        print(*outbox.get())
        back = outbox.get()
        print(type(back).__name__, array.copy_to_host().tolist())
        del back
        inbox.put(None)
        process.join(60)
        print(process.exitcode, mp_cuda.wait_released(30))
"""

CORE = """
    import sys
    import mp_all as mp
    import mp_cuda
    from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    def child(inbox, outbox):
        buffers = [inbox.get(), inbox.get()]
        arrays = [mp_cuda.as_device_array(b) for b in buffers]
        # the same allocation twice is one import
        outbox.put((type(buffers[0]).__name__, arrays[0].copy_to_host(), arrays[0].ptr == arrays[1].ptr))
        try:
            mp_cuda.share(buffers[0])
        except mp_cuda.NotShareableError as error:
            outbox.put(str(error))
        arrays[0].copy_from_host(b"there!")
        del buffers, arrays
        mp_cuda.ipc_collect()
        outbox.put(mp_cuda.ipc_stats()["mappings"])

    if __name__ == "__main__":
        device = Device(0)
        device.set_current()
        pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True))
        stream = device.create_stream()
        buffer = pool.allocate(6, stream=stream)
        stream.sync()
        mp_cuda.as_device_array(buffer).copy_from_host(b"pooled")
        ctx = mp.get_context("spawn")
        inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = ctx.Process(target=child, args=(inbox, outbox))
        process.start()
        inbox.put(buffer)
        inbox.put(mp_cuda.share(buffer))
        print(*outbox.get())
        print("only that one can send it" in outbox.get())
        print(outbox.get())
        process.join(60)
        print(process.exitcode, mp_cuda.as_device_array(buffer).copy_to_host(), mp_cuda.wait_released(30))
        try:
            mp_cuda.share(buffer, receivers=2)
        except mp_cuda.NotShareableError as error:
            print("one receiver" in str(error))
        private = DeviceMemoryResource(device).allocate(6, stream=stream)
        try:
            mp_cuda.share(private)
        except mp_cuda.NotShareableError as error:
            print("ipc_enabled=True" in str(error))
"""


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """
    Install a double of CuPy, with only the names and the protocol that the adapter uses.
    """
    yield from registered(monkeypatch, "cupy", doubles.cupy())


def registered(monkeypatch: pytest.MonkeyPatch, name: str, module: types.ModuleType) -> Iterator[types.ModuleType]:
    for path, part in doubles.parts(name, module).items():
        monkeypatch.setitem(sys.modules, path, part)
    assert mp_cuda.register(name) == (name,)
    yield module
    mp_cuda.unregister(name)


def test_importing_mp_all_imports_no_cuda_and_registers_a_library_when_it_is_imported(tmp_path: Path) -> None:
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "cupy.py").write_text("class ndarray: pass\n")
    assert succeeded(run_script(tmp_path, HOOK, str(folder))).splitlines() == [
        "[]",
        "mp_cuda.libraries.reduce",
        "True SourceFileLoader",
        "False",
        "missing",
    ]


def test_an_array_of_cupy_arrives_as_an_array_of_cupy(peer: p.Peer, cupy: types.ModuleType) -> None:
    base = mp_cuda.from_host(bytes(range(16)))
    array = cupy.ndarray(
        (4,), "<i2", cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(base.ptr, 16, base, 0), 14), (-4,)
    )
    back = ForkingPickler.loads(ForkingPickler.dumps(array))
    assert type(back) is cupy.ndarray
    assert (back.shape, back.strides) == ((4,), (-4,))
    assert mp_cuda.as_device_array(back).copy_to_host() == mp_cuda.as_device_array(array).copy_to_host()
    work = mp_cuda.Stream()
    cupy.cuda.stream = work.ptr
    assert mp_cuda.as_device_array(array)._stream == work.ptr
    cupy.cuda.stream = 0
    assert cupy.cuda.waited  # the current stream was made to wait for the sender


def test_a_device_array_arrives_where_the_library_is_missing(peer: p.Peer, cupy: types.ModuleType) -> None:
    base = mp_cuda.from_host(b"no cupy there")
    array = cupy.ndarray((13,), "|u1", cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(base.ptr, 13, base, 0), 0), None)
    if peer.call(is_installed, "cupy"):
        pytest.skip("CuPy is installed, so it is not missing in the other process")
    assert peer.call(p.bytes_of, array) == b"no cupy there"


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_dlpack_exports_and_imports_without_a_copy() -> None:
    base = mp_cuda.from_host(bytes(range(12)))
    taken = mp_cuda.as_device_array(doubles.OnlyDLPack(base))
    assert (taken.ptr, taken.shape, str(taken.dtype)) == (base.ptr, (12,), "uint8")
    unused = base.__dlpack__()
    del unused
    half = mp_cuda.empty(4, "bfloat16")
    assert mp_cuda.as_device_array(doubles.OnlyDLPack(half)).dtype == half.dtype
    with pytest.raises(AttributeError, match="use DLPack"):
        _ = half.__cuda_array_interface__
    for kind, word in ((3, "pinned"), (13, "managed")):
        with pytest.raises(mp_cuda.NotShareableError, match=word):
            mp_cuda.as_device_array(doubles.OnlyDLPack(base, kind))
    with pytest.raises(TypeError, match="not CUDA"):
        mp_cuda.as_device_array(doubles.OnlyDLPack(base, 1))
    with pytest.raises(BufferError, match="without a copy"):
        base.__dlpack__(copy=True)


def test_a_capsule_keeps_its_memory_until_its_consumer_is_done() -> None:
    from mp_cuda.arrays import dlpack

    capsule = mp_cuda.from_host(b"capsule").__dlpack__()
    mp_cuda.ipc_collect()
    contents: Any = dlpack.read(capsule)
    with pytest.raises(BufferError, match="consumed before"):
        dlpack.read(capsule)
    del capsule
    view = DeviceArray(contents.ptr, (7,), contents.dtype, 0, owner=contents.owner)
    del contents
    mp_cuda.ipc_collect()
    assert view.copy_to_host() == b"capsule"


def test_unknown_libraries_are_named() -> None:
    with pytest.raises(ValueError, match="known are cupy, numba, torch"):
        mp_cuda.register("tensorflow")


def test_real_numba_arrays_arrive_as_numba_arrays(tmp_path: Path) -> None:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: nox -s cuda-stub has it")
    first, second, third = succeeded(run_script(tmp_path, NUMBA, PYTHONWARNINGS="ignore")).splitlines()
    assert first.endswith("devicearray [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]] (16, 8)")
    assert second == "DeviceNDArray [[7.0, 1.0, 7.0, 3.0], [7.0, 5.0, 7.0, 7.0], [7.0, 9.0, 7.0, 11.0]]"
    assert third == "0 True"


@pytest.mark.parametrize(
    "imports",
    [
        "import mp_all, numba.cuda",
        "import numba.cuda, mp_all",
        "import mp_all; from numba.cuda import extending",
        "import mp_all; from numba.cuda.cudadrv import devicearray",
    ],
)
def test_numbas_arrays_are_registered_however_numba_is_imported(tmp_path: Path, imports: str) -> None:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: nox -s cuda-stub has it")
    text = f"""
        {imports}
        from multiprocessing.reduction import ForkingPickler
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        print(DeviceNDArray in ForkingPickler._extra_reducers)
    """
    assert succeeded(run_script(tmp_path, text, PYTHONWARNINGS="ignore")) == "True\n"


def test_real_buffers_of_cuda_core_are_sent_through_their_pool(tmp_path: Path) -> None:
    if importlib.util.find_spec("cuda.core") is None:
        pytest.skip("cuda-core is not installed")
    assert succeeded(run_script(tmp_path, CORE, PYTHONWARNINGS="ignore")).splitlines() == [
        "Buffer b'pooled' True",
        "True",
        "0",
        "0 b'there!' True",
        "True",
        "True",
    ]
