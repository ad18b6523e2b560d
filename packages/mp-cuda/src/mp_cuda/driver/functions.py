"""The compiled module, with what it calls of the driver's. Without libshm there is none: `MpCudaError`.

Every other module calls the compiled one through this module.
"""

from __future__ import annotations

import os
import threading

from mp_core.sharing import backend, forks
from mp_cuda.driver import cuda_driver
from mp_cuda.errors import MpCudaError

if not backend.LIBSHM:  # CUDA's memory goes between processes only on Linux, and there libshm runs
    raise MpCudaError("device arrays need libshm, which is switched off or does not run here: use their own library")

from mp_cuda._native import *  # noqa: F403
from mp_cuda._native import forget, renew_process, set_hooks

_no_fork = threading.RLock()
forks.keep_out(_no_fork)
os.register_at_fork(after_in_child=renew_process)
cuda_driver.after_fork(forget)
set_hooks(
    no_fork=_no_fork,
    context=lambda device: int(cuda_driver.context_of(device)),
    start_driver=cuda_driver.bindings,
    driver_failed=cuda_driver.failed,
    uuid_of=cuda_driver.uuid_of,
    ordinal_of=cuda_driver.ordinal_of,
    memory_of=cuda_driver.memory_of,
)
