"""Diagnostics: what a bug report says about CUDA devices."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from mp_cuda.driver import cuda_driver

IPC_EVENTS = 125


def device_report() -> Iterator[tuple[str, str]]:
    """
    Describe bindings, driver and devices for a bug report, and name what is known not to work here.

    Returns
    -------
    iterator of (str, str)
        A name and its value.

    Examples
    --------
    >>> dict(mp_cuda.device_report())["bindings"] != ""
    True
    """
    try:
        yield "bindings", f"cuda-bindings {metadata.version('cuda-bindings')}"
    except metadata.PackageNotFoundError:
        yield "bindings", 'not installed (pip install "mp-all[cuda]")'
        return
    try:
        version = int(cuda_driver.call("cuDriverGetVersion"))
        count = cuda_driver.device_count()
    except RuntimeError as error:
        yield "devices", f"none can be used: {str(error).splitlines()[0]}"
        return
    yield "driver", f"CUDA {version // 1000}.{version % 1000 // 10}"
    for i in range(count):
        device = cuda_driver.call("cuDeviceGet", i)
        name = cuda_driver.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        attribute = cuda_driver.bindings().CUdevice_attribute
        events = cuda_driver.call("cuDeviceGetAttribute", attribute(IPC_EVENTS), device)
        cannot = "" if events else "; events cannot be shared between processes here"
        yield f"device {i}", f"{name}, {cuda_driver.uuid_of(i).hex()}{cannot}"
    if not count:
        yield "devices", "none"
    if "microsoft" in platform.release().lower():
        yield "WSL", "device memory cannot be shared between processes on WSL 2"
