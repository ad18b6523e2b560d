"""CUDA device arrays and events between processes: for now, whether this machine could have them.

Importing this package touches neither the driver nor the bindings.
"""

from __future__ import annotations

from mp_core._version import __version__ as __version__

__all__ = ["is_available"]


def is_available() -> bool:
    """
    Is there a CUDA driver with at least one device? Without one, or without the bindings, it is False.

    >>> is_available() in (True, False)
    True
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return False
    try:
        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return False
        status, count = driver.cuDeviceGetCount()
    except RuntimeError:  # the bindings found no libcuda to load
        return False
    return bool(status == driver.CUresult.CUDA_SUCCESS and count > 0)
