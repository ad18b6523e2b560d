"""Where it was measured: without this the numbers mean nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform


def describe() -> dict[str, str]:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cores": f"{len(os.sched_getaffinity(0))} ({_cpu()})",
        "memory": f"{gib:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in ("mp-all", "numpy", "torch")},
    }


def load() -> str:
    """The load average over one, five and fifteen minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
