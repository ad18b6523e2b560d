"""DataLoader under `mp_torch.install()`: batches in shared memory, few descriptors, torch's errors, nothing left."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))
from scene import can_unshare, with_dev_shm_of

torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")

pytestmark = pytest.mark.timeout(300)


def environment(folder: Path, strategy: str) -> dict[str, str]:
    """
    Return the environment of a program that uses tests/support, and whose session is the only one in *folder*.
    """
    tests = str(Path(__file__).parents[1])
    return {"PYTHONPATH": tests, "MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}


PRELUDE = """
    import os, resource, signal, sys, warnings
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset
    import mp_all as mp
    from support.waiting import until

    class Samples(Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, k):
            return {"image": torch.full((3, 64, 64), float(k)), "array": np.full(100, k), "label": k, "name": f"n{k}"}

    class Stream(IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            return iter(torch.full((1000,), float(k)) for k in range(worker.id, 40, worker.num_workers))

    class Killed(Samples):
        def __getitem__(self, k):
            if k == 100:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(k)

    def check(batch, first):
        count = len(batch["label"])
        assert batch["label"].tolist() == list(range(first, first + count))
        assert batch["name"] == [f"n{k}" for k in batch["label"].tolist()]
        for each in (batch["image"], batch["array"]):
            assert each.is_shared() and each.shape[0] == count
            for k in range(count):
                assert bool((each[k] == first + k).all())
        return first + count

    def in_use():
        return sum(segment.live_bytes + segment.in_flight_bytes for segment in mp.list_segments())
"""

BATCHES = """
    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        if "limit" in sys.argv:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        context = mp.get_context(sys.argv[1])
        loader = DataLoader(
            Samples(), 16, num_workers=2, persistent_workers=True, prefetch_factor=3, multiprocessing_context=context
        )
        kept = []
        for _ in range(2):
            first = 0
            for batch in loader:
                first = check(batch, first)
                kept.append(batch["image"][0, 0, 0])
            assert first == 240
        stream = DataLoader(Stream(), 4, num_workers=2, multiprocessing_context=sys.argv[1])
        assert sorted(float(row[0]) for batch in stream for row in batch) == list(range(40))
        del loader, batch, stream, kept
        if "limit" in sys.argv:
            assert len(os.listdir("/proc/self/fd")) < 40
        print("good")
"""


def test_batches_arrive_in_shared_memory_with_64_descriptors(tmp_path: Path, start_method: str, strategy: str) -> None:
    done = run_script(
        tmp_path,
        PRELUDE + BATCHES,
        start_method,
        "limit",
        timeout=200,
        **environment(tmp_path, strategy),
    )
    assert succeeded(done) == "good\n"


UNCHANGED = """
    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        for workers in (0, 1, 2):
            first = 0
            for batch in DataLoader(Samples(), 50, num_workers=workers, drop_last=True):
                count = len(batch["label"])
                assert batch["label"].tolist() == list(range(first, first + count))
                assert batch["image"].is_shared() == (workers > 0)
                first += count
            assert first == 200
        # Left before its end: the batches that nobody reads are freed.
        for _ in range(3):
            for batch in DataLoader(Samples(), 16, num_workers=2):
                break
        del batch
        assert until(lambda: in_use() == 0, 20), mp.list_segments()
        print("good")
"""


def test_an_unchanged_data_loader_shares_and_when_left_early_leaves_nothing(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, PRELUDE + UNCHANGED, timeout=200, **environment(tmp_path, strategy))
    assert succeeded(done) == "good\n"


TERMINATED = """
    import time
    from multiprocessing.process import BaseProcess

    class Busy(Samples):  # in bytecode, so that other threads of the worker wait for the GIL
        def __getitem__(self, k):
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
            return super().__getitem__(k)

    def impatient(process, timeout=None):
        if timeout is None or process in told:
            wait(process, timeout)

    def tell(process):
        told.append(process)
        terminate(process)
        wait(process, 60)

    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        told, wait, terminate = [], BaseProcess.join, BaseProcess.terminate
        BaseProcess.join, BaseProcess.terminate = impatient, tell  # torch waits for 5 seconds
        for k in range(20):
            for batch in DataLoader(Busy(), 4, num_workers=2, prefetch_factor=8):
                time.sleep(0.001 * k)  # in each another moment of a worker
                break
        del batch
        assert len(told) > 10, told  # the others have ended by themselves
        assert until(lambda: in_use() == 0, 20), mp.list_segments()
        print("good")
"""


def test_workers_that_torch_terminates_leave_nothing(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, PRELUDE + TERMINATED, timeout=200, **environment(tmp_path, strategy))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


LATE = """
    import mp_all as mp

    if __name__ == "__main__":
        import torch
        from torch.utils.data import DataLoader

        loader = DataLoader(range(8), 4, num_workers=1)
        batches = iter(loader)
        print(type(batches._worker_result_queue).__module__, loader.multiprocessing_context)
        print([batch.tolist() for batch in batches])
"""


def test_a_program_left_unchanged_has_our_queue_in_its_data_loader(tmp_path: Path) -> None:
    done = run_script(tmp_path, LATE, timeout=200, MP_TORCH="1", **environment(tmp_path, "file_descriptor"))
    assert succeeded(done) == "mp_core.channels.channel_queues None\n[[0, 1, 2, 3], [4, 5, 6, 7]]\n"


NAMED = """
    import multiprocessing
    import sys
    import mp_torch
    import torch
    from torch.utils.data import DataLoader

    class Own(type(multiprocessing.get_context("spawn"))):
        pass

    if __name__ == "__main__":
        mp_torch.install()
        for given in (sys.argv[2], multiprocessing.get_context(sys.argv[2]), Own()):
            loader = DataLoader(range(8), 4, num_workers=1, multiprocessing_context=given)
            before, batches = loader.multiprocessing_context, iter(loader)
            assert loader.multiprocessing_context is before
            print(type(batches._worker_result_queue).__module__, batches._workers[0]._start_method)
            assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
"""


def test_a_data_loader_with_a_start_method_or_a_standard_context_has_our_queue(
    tmp_path: Path, start_method: str
) -> None:
    done = run_script(tmp_path, NAMED, "", start_method, timeout=200, **environment(tmp_path, "file_descriptor"))
    ours = f"mp_core.channels.channel_queues {start_method}\n"
    assert succeeded(done) == 2 * ours + "multiprocessing.queues spawn\n"


def test_threads_that_iterate_one_loader_leave_its_context_as_it_was(tmp_path: Path, strategy: str) -> None:
    text = """
        import threading
        import mp_torch
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        def read(loader, begin):
            begin.wait()
            assert sum(len(batch) for batch, in loader) == 8

        if __name__ == "__main__":
            mp_torch.install()
            for _ in range(6):
                loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1)
                begin = threading.Barrier(3)
                threads = [threading.Thread(target=read, args=(loader, begin)) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert loader.multiprocessing_context is None
    """
    succeeded(run_script(tmp_path, text, **environment(tmp_path, strategy)))


PINNED = """
    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            first = 0
            for batch in DataLoader(Samples(), 48, num_workers=2, pin_memory=True):
                first = check(batch, first)
        assert first == 240
        assert any("no accelerator is found" in str(each.message) for each in seen), seen
        print("good")
"""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is here, and torch pins")
def test_without_an_accelerator_pin_memory_leaves_batches_where_they_are(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, PRELUDE + PINNED, timeout=200, **environment(tmp_path, strategy))
    assert succeeded(done) == "good\n"


SMALL = """
    class Large(Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, k):
            return torch.full((1 << 19,), float(k))  # 2 MiB, and 16 MiB a batch

    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 8 << 20
        first = 0
        for batch in DataLoader(Large(), 8, num_workers=2):
            assert batch[:, 0].tolist() == batch[:, -1].tolist() == list(range(first, first + 8))
            assert batch.is_shared() == (sys.argv[1] == "file_descriptor")
            first += 8
        print("good")
"""


@pytest.mark.skipif(not can_unshare(), reason="a mount namespace cannot be made here (needs root)")
def test_batches_arrive_with_a_dev_shm_of_8_megabytes(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PRELUDE + SMALL))
    command = with_dev_shm_of("8m", sys.executable, str(tmp_path / "program.py"), strategy)
    start = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    done = run_python("-c", start, *command, timeout=200, **environment(tmp_path, strategy))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
    assert ("travels through the pipe" in done.stderr) == (strategy == "file_system")


DEATH = """
    if __name__ == "__main__":
        torch.set_num_threads(1)
        mp.torch_install()
        received = 0
        try:
            for batch in DataLoader(Killed(), 10, num_workers=2, multiprocessing_context=mp.get_context(sys.argv[1])):
                received = check(batch, received)
        except RuntimeError as error:
            text = str(error)
        assert received <= 100, received
        assert "killed by signal: Killed" in text or "exited unexpectedly" in text, text
        del batch
        assert until(lambda: in_use() == 0, 20), mp.list_segments()
        print("good")
"""


def test_a_killed_worker_is_torchs_error_and_its_memory_returns(
    tmp_path: Path, start_method: str, strategy: str
) -> None:
    done = run_script(tmp_path, PRELUDE + DEATH, start_method, timeout=200, **environment(tmp_path, strategy))
    # torch's other worker may write to stderr: under spawn it may abort when it is asked to end.
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
