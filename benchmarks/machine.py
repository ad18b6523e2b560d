"""Describe the machine, which the numbers depend on."""

from __future__ import annotations

import importlib.metadata
import os
import platform


def describe() -> dict[str, str]:
    """Return processor, cores, memory, kernel, and the versions of Python, NumPy and mp-all."""
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{gib:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "NumPy": importlib.metadata.version("numpy"),
        "mp-all": importlib.metadata.version("mp-all"),
    }


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
