"""The device of the tests of mp-cuda: the stub driver, which is not a GPU, or hardware on request."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HARDWARE = os.environ.get("MP_CUDA_TEST_DEVICE") == "hardware"
SOURCE = Path(__file__).parent / "stub"
COUNTERS = [
    "allocs",
    "frees",
    "opens",
    "closes",
    "events_made",
    "events_gone",
    "event_opens",
    "event_closes",
    "violations",
]
LABEL = (
    "tests/cuda ran on a GPU"
    if HARDWARE
    else "tests/cuda: the STUB DRIVER was used, not a GPU; nothing here was tried on hardware"
)


class Stub:
    """The stub driver, built and loaded into this process. Children find it through their environment."""

    def __init__(self) -> None:
        root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="mp-cuda-stub-", dir=root))
        self.path = self.folder / "libcuda.so.1"
        compiler = os.environ.get("CC", "cc")
        flags = "-std=gnu11 -O1 -fPIC -shared -fvisibility=hidden -pthread -Werror=implicit"
        command = [compiler, *flags.split()]
        sources = sorted(str(path) for path in SOURCE.glob("*.c"))
        subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-o", str(self.path), *sources], check=True, timeout=120)
        state = self.folder / "state"
        state.mkdir()
        paths = [str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.environment = {
            "LD_LIBRARY_PATH": os.pathsep.join(paths),
            "MP_CUDA_STUB_FOLDER": str(state),
            "MP_CUDA_STUB_STRICT": "1",
        }
        self._before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        self.library = ctypes.CDLL(str(self.path), ctypes.RTLD_GLOBAL)
        self.library.mpstub_calls.restype = ctypes.c_uint64

    def calls(self, function: str) -> int:
        """Return how often all processes have called a function of the driver."""
        count: int = self.library.mpstub_calls(function.encode())
        return count

    def counters(self) -> dict[str, int]:
        """Return the counters, summed over all processes."""
        return {name: self.library.mpstub_counter(i) for i, name in enumerate(COUNTERS)}

    def violations(self) -> str:
        """Return the broken rules that the stub has found, a line each."""
        log = self.folder / "state" / "violations.log"
        return log.read_text() if log.exists() else ""

    def stop_at(self, stream: int, gate: int) -> None:
        """Stop the stream until the gate is opened, in place of a long kernel."""
        from mp_cuda.driver import cuda_driver

        with cuda_driver.guard(0):
            assert self.library.mpstub_wait_gate(ctypes.c_void_p(stream), gate) == 0

    def open_gate(self, gate: int) -> None:
        self.library.mpstub_open_gate(gate)

    def close_gate(self, gate: int) -> None:
        self.library.mpstub_close_gate(gate)

    def fail(self, function: str, code: int, times: int = 1) -> None:
        """Make the next calls of a function fail with this code. An empty name clears all faults."""
        self.library.mpstub_fail(function.encode(), code, ctypes.c_long(times))

    def pause(self, function: str, gate: int) -> None:
        """Make the calls of a function in this process wait for a gate. An empty name pauses none."""
        self.library.mpstub_pause(function.encode(), gate)

    def close(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        shutil.rmtree(self.folder)
