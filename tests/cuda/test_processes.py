"""Whole programs: forks, exits, channels and devices."""

from __future__ import annotations

import ctypes
import os
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import peer as p
import pytest
from device import Stub
from support.scripts import run_script, succeeded

import mp_all as mp
import mp_cuda

FORK = """
    import os, sys
    import mp_all as mp
    import mp_cuda

    def child(array, out):
        try:
            mp_cuda.empty(3)
            out.put("no error")
        except mp_cuda.ForkError as error:
            del array
            out.put(str(error))

    def innocent(out):
        out.put(mp_cuda.from_host(b"in the child").copy_to_host())

    ctx = mp.get_context("fork")
    out = ctx.SimpleQueue()
    process = ctx.Process(target=innocent, args=(out,))
    process.start()
    print(out.get())
    process.join(30)

    array = mp_cuda.from_host(b"in the parent")
    process = ctx.Process(target=child, args=(array, out))
    process.start()
    print(out.get())
    process.join(30)
    print(process.exitcode, array.copy_to_host())
"""

IDLE_CHILD = """
    import os
    import mp_all as mp
    import mp_cuda
    from multiprocessing.reduction import ForkingPickler

    # A forked child that does not use CUDA does not keep memory that its parent has sent or received.
    def idle(ready, go):
        ready.set()
        go.wait()  # it lives longer than the parent waits for the release

    def receiver(inbox, outbox):
        array = inbox.get()
        ctx = mp.get_context("fork")
        ready, go = ctx.Event(), ctx.Event()
        child = ctx.Process(target=idle, args=(ready, go))
        child.start()
        ready.wait(30)
        del array
        mp_cuda.ipc_collect()
        outbox.put("dropped")
        inbox.get()
        go.set()
        child.join(30)

    if __name__ == "__main__":
        ctx = mp.get_context("spawn")
        inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = ctx.Process(target=receiver, args=(inbox, outbox))
        process.start()
        inbox.put(mp_cuda.from_host(b"abc"))
        print(outbox.get(), mp_cuda.wait_released(30))
        inbox.put(None)
        process.join(30)
        print(process.exitcode)
"""

EXIT = """
    import sys
    import mp_all as mp
    import mp_cuda

    def take(inbox, ready, go):
        array = inbox.get()
        ready.set()
        go.wait(30)

    if __name__ == "__main__":
        mp_cuda.set_policy(exit_wait=float(sys.argv[1]))
        from multiprocessing.reduction import ForkingPickler
        message = bytes(ForkingPickler.dumps(mp_cuda.from_host(b"unread")))
"""


def test_cuda_after_a_fork_is_a_clear_error_and_before_a_fork_works(tmp_path: Path) -> None:
    first, second, third = succeeded(run_script(tmp_path, FORK)).splitlines()
    assert first == "b'in the child'"
    assert second.startswith("Cannot re-initialize CUDA in forked subprocess")
    assert "'spawn' or 'forkserver'" in second
    assert third == "0 b'in the parent'"


def test_a_forked_child_keeps_nothing_of_its_parent(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, IDLE_CHILD)) == "dropped True\n0\n"


def test_a_process_that_ends_too_early_warns(tmp_path: Path) -> None:
    done = run_script(tmp_path, EXIT, "0", PYTHONWARNINGS="always")
    assert done.returncode == 0
    assert "other processes use, or may still receive, 1 of its messages with device arrays" in done.stderr


def total(array: Any) -> int:
    return sum(array.copy_to_host())


def echo(inbox: Any, outbox: Any, stub: Any) -> None:
    if stub is not None:  # a fork server started before the stub was built has another environment
        os.environ.update(stub[0])
        ctypes.CDLL(stub[1], ctypes.RTLD_GLOBAL)
    for array in iter(inbox.get, None):
        outbox.put(array)
        del array


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_arrays_go_through_queues_of_either_kind(start_method: str, driver: Stub | None) -> None:
    ctx = mp.get_context(start_method)
    inbox, outbox = ctx.Queue(1), ctx.SimpleQueue()
    stub = (driver.environment, str(driver.path)) if driver else None
    child = ctx.Process(target=echo, args=(inbox, outbox, stub))
    child.start()
    try:
        for i in range(5):
            array = mp_cuda.from_host(bytes([i, i]))
            inbox.put(mp_cuda.share(array))
            back = outbox.get()
            assert back.ptr == array.ptr
    finally:
        inbox.put(None)
        child.join(p.WAIT_S)
        assert child.exitcode == 0
        inbox.close()
        inbox.join_thread()
        outbox.close()


class Growth:
    """The growth of descriptors, events and resident memory after the first tenth of a stream."""

    def __init__(self, count: int) -> None:
        self.count, self.seen, self.before = count, 0, (0, 0, 0)

    def step(self) -> None:
        self.seen += 1
        if self.seen == self.count // 10:
            self.before = self.now()

    @staticmethod
    def now() -> tuple[int, int, int]:
        stats = mp_cuda.ipc_stats()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), stats["pool_events"] + stats["imported_events"], resident

    def check(self) -> None:
        (fds, events, resident), now = self.before, self.now()
        assert now[0] <= fds + 4, f"{fds} descriptors became {now[0]}"
        # As many as arrays that wait for their release at once, which on a busy machine are dozens.
        assert now[1] <= events + 200, f"{events} events became {now[1]}"
        assert now[2] <= resident + (24 << 20), f"{resident} bytes resident became {now[2]}"


def produce(count: int, outbox: Any) -> None:
    growth = Growth(count)
    for i in range(count):
        growth.step()
        array = mp_cuda.from_host((i % 1000).to_bytes(4, "little"))
        while outbox.full():
            pass
        outbox.put(array)
        del array
    assert mp_cuda.wait_released(p.WAIT_S)
    growth.check()
    outbox.put(None)
    outbox.close()
    outbox.join_thread()


def relay(count: int, inbox: Any, outbox: Any) -> None:
    growth = Growth(count)
    while (array := inbox.get()) is not None:
        growth.step()
        clone = mp_cuda.from_host(array.copy_to_host())
        del array
        outbox.put(clone)
        del clone
    assert mp_cuda.wait_released(p.WAIT_S)
    growth.check()
    outbox.put(None)
    outbox.close()
    outbox.join_thread()


def test_a_stream_of_arrays_through_three_processes_is_complete_and_leaks_nothing() -> None:
    count = 100_000 if os.environ.get("MP_SOAK") else 400
    growth = Growth(count)
    ctx = mp.get_context("spawn")
    first, second = ctx.Queue(1), ctx.Queue(1)
    children = [
        ctx.Process(target=produce, args=(count, first)),
        ctx.Process(target=relay, args=(count, first, second)),
    ]
    for child in children:
        child.start()
    try:
        total = 0
        for array in iter(lambda: second.get(timeout=p.WAIT_S), None):
            growth.step()
            total += int.from_bytes(array.copy_to_host(), "little")
            del array
            if total % 500 == 0:
                mp_cuda.ipc_collect()
        assert total == sum(i % 1000 for i in range(count))
        growth.check()
    finally:
        for child in children:
            child.join(p.WAIT_S)
            child.kill()
            child.join()
        for channel in first, second:
            channel.close()
            channel.join_thread()
    assert [child.exitcode for child in children] == [0, 0]


def test_arrays_are_arguments_and_results_of_pools() -> None:
    with mp.get_context("spawn").Pool(1) as pool:
        arrays = [mp_cuda.from_host(bytes([i, 1])) for i in range(4)]
        assert pool.map(total, arrays) == [1, 2, 3, 4]
        assert pool.apply(p.bytes_of, (arrays[3],)) == b"\3\1"
        back = pool.apply(p.send_bytes_of, (b"result",))
        # The worker's lease keeps it, although the worker's own variable is gone.
        assert back.copy_to_host() == b"result"
        del back
        mp_cuda.ipc_collect()
        pool.close()
        pool.join()


def test_a_manager_keeps_arrays_and_returns_them(peer: p.Peer) -> None:
    array = mp_cuda.from_host(b"managed")
    with mp.get_context("spawn").Manager() as manager:
        kept = manager.list([array])
        kept.append(array)
        back = kept[1]
        assert back.ptr == array.ptr and back.copy_to_host() == b"managed"
        # The manager has a reference of its own to each, until they are removed there.
        assert not mp_cuda.wait_released(timeout=0)
        del back
        kept[:] = []
        assert mp_cuda.wait_released(p.WAIT_S)


def test_arrays_are_arguments_and_results_of_an_executor() -> None:
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as executor:
        array = mp_cuda.from_host(b"\1\2\3")
        assert executor.submit(total, array).result(p.WAIT_S) == 6
        assert list(executor.map(total, [mp_cuda.share(array)] * 1, timeout=p.WAIT_S)) == [6]
        back = executor.submit(p.send_bytes_of, b"result").result(p.WAIT_S)
        assert back.copy_to_host() == b"result"
        del back
        mp_cuda.ipc_collect()


LOKY = """
    import mp_cuda
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    if __name__ == "__main__":
        def total(array):
            return sum(array.copy_to_host())

        array = mp_cuda.from_host(bytes([1, 2, 3]))
        print(Parallel(n_jobs=2)(delayed(total)(mp_cuda.share(array)) for _ in range(4)))
        try:
            Parallel(n_jobs=2)(delayed(total)(array) for _ in range(4))
        except Exception as error:
            print("can be sent to another process" in str(error.__cause__ or error) + str(error.__context__))
        get_reusable_executor().shutdown()
        print(mp_cuda.wait_released(30))
"""


def test_joblib_takes_shared_arrays_and_refuses_others_with_a_clear_error(tmp_path: Path) -> None:
    """Its processes use their own pickler, which does not know the reducers of multiprocessing."""
    pytest.importorskip("joblib", reason="joblib is not installed")
    assert succeeded(run_script(tmp_path, LOKY)).splitlines() == ["[6, 6, 6, 6]", "True", "True"]


@pytest.mark.needs_stub
def test_devices_are_identified_by_uuid_and_not_by_number(
    peer: p.Peer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = mp_cuda.from_host(b"first", device=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    swapped = p.Peer()
    assert swapped.call(p.described, array)[4:] == (1, b"first")
    swapped.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    blind = p.Peer()
    with pytest.raises(mp_cuda.DeviceNotVisibleError, match=r"none of the 1 .*CUDA_VISIBLE_DEVICES"):
        blind.call(p.described, array)
    blind.close()
    mp_cuda.ipc_collect(in_flight_older_than=0)


@pytest.mark.needs_stub
def test_without_a_device_or_a_driver_importing_works_and_errors_have_names(tmp_path: Path) -> None:
    text = """
        import mp_cuda
        print(mp_cuda.is_available(), dict(mp_cuda.device_report())["devices"])
        try:
            mp_cuda.empty(3)
        except mp_cuda.MpCudaError as error:
            print(type(error).__name__, error)
    """
    no_device = succeeded(run_script(tmp_path, text, MP_CUDA_STUB_DEVICES="0")).splitlines()
    assert no_device[0].startswith("False none can be used: cuInit failed: CUDA_ERROR_NO_DEVICE (100)")
    assert no_device[1] == "DriverError cuInit failed: CUDA_ERROR_NO_DEVICE (100)"
    no_driver = succeeded(run_script(tmp_path, text, LD_LIBRARY_PATH="")).splitlines()
    assert no_driver[0].startswith("False none can be used: no CUDA driver could be loaded")
    assert no_driver[1].startswith("MpCudaError no CUDA driver could be loaded")


@pytest.mark.needs_stub
def test_a_driver_that_is_too_old_is_an_error_that_says_so(tmp_path: Path) -> None:
    text = """
        import mp_cuda
        print(mp_cuda.is_available())
        try:
            mp_cuda.Event(interprocess=True).ipc_handle()
        except mp_cuda.MpCudaError as error:
            print(type(error).__name__, error)
    """
    refused = succeeded(run_script(tmp_path, text, MP_CUDA_STUB_FAIL="cuInit:803")).splitlines()
    assert refused[0] == "False"
    assert refused[1].startswith("DriverError cuInit failed: ") and refused[1].endswith("(803)")
    lacking = succeeded(run_script(tmp_path, text, MP_CUDA_STUB_LACKS="cuIpcGetEventHandle")).splitlines()
    assert lacking[0] == "True"
    assert lacking[1].startswith("MpCudaError cuIpcGetEventHandle: ")
    assert "the CUDA driver is too old" in lacking[1]


README = Path(__file__).parents[2] / "packages/mp-cuda/README.md"


def test_the_program_in_the_readme_prints_what_its_comments_say(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    out = succeeded(run_script(tmp_path, block)).splitlines()
    assert out == re.findall(r"^ *print\(.*\)  # (.+)$", block, re.MULTILINE)


def test_the_bug_report_lists_the_devices(tmp_path: Path) -> None:
    text = "import runpy\nrunpy.run_module('mp_all', run_name='__main__')\n"  # python -m mp_all
    assert "device 0" in succeeded(run_script(tmp_path, text)).split("CUDA\n")[1]


@pytest.mark.needs_stub
def test_the_bug_report_says_that_there_is_no_device_or_no_driver(tmp_path: Path) -> None:
    text = "import runpy\nrunpy.run_module('mp_all', run_name='__main__')\n"
    no_device = succeeded(run_script(tmp_path, text, MP_CUDA_STUB_DEVICES="0")).split("CUDA\n")[1]
    assert "none can be used: cuInit failed: CUDA_ERROR_NO_DEVICE (100)" in no_device
    no_driver = succeeded(run_script(tmp_path, text, LD_LIBRARY_PATH="")).split("CUDA\n")[1]
    assert "none can be used: no CUDA driver could be loaded" in no_driver


def test_without_libshm_arrays_cannot_be_made_and_the_error_says_why(tmp_path: Path) -> None:
    text = """
        import mp_all
        import mp_cuda

        mp_cuda.init_reductions()
        print(mp_cuda.device_count())
        for name in "from_host", "share", "DeviceArray", "ipc_collect":
            try:
                getattr(mp_cuda, name)
            except mp_cuda.MpCudaError as error:
                print(error)
    """
    first, *refusals = succeeded(
        run_script(tmp_path, text, MP_WITHOUT_LIBSHM="1", MP_SHARING_STRATEGY="file_system")
    ).splitlines()
    assert first == "2"
    assert len(refusals) == 4 and all("need libshm" in line for line in refusals)


def test_a_process_that_only_receives_has_all_that_c_calls(tmp_path: Path) -> None:
    """Pickles name one module; what C calls of others must be set when it is imported."""
    text = """
        import re, sys
        from pathlib import Path
        import mp_cuda.libraries.reduce

        modules = [module for name, module in sys.modules.items() if name.startswith("mp_cuda.")]
        text = "".join(Path(m.__file__).read_text() for m in modules if m.__file__.endswith(".py"))
        hooks = re.findall(r"HOOK\\((\\w+)\\)", Path(HOOKS).read_text())
        print(len(hooks), [name for name in hooks if f" {name}=" not in text and f"({name}=" not in text])
    """
    hooks = Path(__file__).parents[2] / "packages" / "mp-cuda" / "native" / "hooks.c"
    count, missing = succeeded(run_script(tmp_path, text.replace("HOOKS", repr(str(hooks))))).split(maxsplit=1)
    assert int(count) > 20 and missing == "[]\n"
