"""The end of the process: close what is others', say what others still have of ours."""

from __future__ import annotations

import warnings
from multiprocessing import util

from mp_cuda import driver, policy

__all__ = ["arrange"]

# After the feeder threads of queues have written their last message (-5).
LATE = -10


def arrange() -> None:
    """Have `_farewell` called at the end of this process, of a child of multiprocessing too."""
    util.Finalize(None, _farewell, exitpriority=LATE)


def _farewell() -> None:
    if not driver.started():
        return
    from mp_cuda import janitor, opened, signals
    from mp_cuda.collect import ipc_collect, wait_released
    from mp_cuda.export import exports

    try:
        janitor.drain()
        for device in {mapping.device for mapping in opened.mappings.values()}:
            driver.synchronize(device)
        opened.close_all()
        signals.close_all()
        janitor.drain()
        ipc_collect()
    except Exception as error:  # the process ends in any case, and the driver closes everything then
        warnings.warn(f"mp_cuda could not close everything at exit: {error}", ResourceWarning, stacklevel=1)
    if exports and not wait_released(policy.exit_wait):
        warnings.warn(
            f"this process ends while others have, or may still receive, {len(exports)} of its "
            f"device arrays; their memory "
            "ends with it. Call mp_cuda.wait_released() before, or set_policy(exit_wait=seconds)",
            ResourceWarning,
            stacklevel=1,
        )
