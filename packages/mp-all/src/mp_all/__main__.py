"""`python -m mp_all`: what a bug report needs. `python -m mp_all stat`: every segment and who has it."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib import metadata

import mp_all

PACKAGES = ("mp-all", "mp-core", "mp-reductions", "mp-spawn", "mp-cuda", "numpy", "cffi", "cuda-python", "torch")


def size(nbytes: float) -> str:
    """*nbytes* as people write it.

    >>> size(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield "platform", f"{platform.platform()}, {os.cpu_count()} cores"
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


def sharing() -> Iterator[tuple[str, str]]:
    yield "strategy", f"{mp_all.get_sharing_strategy()} (of {', '.join(sorted(mp_all.get_all_sharing_strategies()))})"
    yield "start method", f"{mp_all.get_start_method()} (of {', '.join(mp_all.get_all_start_methods())})"
    yield "inline up to", size(mp_all.get_inline_limit())


def limits() -> Iterator[tuple[str, str]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield "descriptors", f"{len(os.listdir('/proc/self/fd'))} open, limit {soft} (can be raised to {hard})"
    try:
        fs = os.statvfs("/dev/shm")
        free, total = fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize
        yield "/dev/shm", f"{size(free)} free of {size(total)} (limits file_system only)"
    except FileNotFoundError:
        yield "/dev/shm", "missing: file_system cannot be used"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free_pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield "memory", f"{size(free_pages)} free of {size(pages)}"
    for name in ("vm/max_map_count", "vm/overcommit_memory"):
        try:
            with open(f"/proc/sys/{name}") as file:
                yield name.replace("/", "."), file.read().strip()
        except OSError:
            pass


def memory() -> Iterator[tuple[str, str]]:
    for name, value in mp_all.memory_stats().items():
        yield name, size(value) if name.endswith("bytes") else str(value)


def devices() -> Iterator[tuple[str, str]]:
    if sys.platform != "linux":
        yield "devices", "mp-cuda is for Linux"
        return
    import mp_cuda

    yield from mp_cuda.situation()


def stat() -> None:
    """A line for each segment of every program of this user that shares memory now."""
    own = os.getpid()
    rows = [segment for segment in mp_all.list_segments() if segment.owner != own]
    if not rows:
        print("nobody of this user shares memory now")
        return
    line = "{:<10}{:<17}{:>8}{:>9}{:>9}{:>12}{:>12}{:>12}  {}"
    print(line.format("tree", "strategy", "owner", "age", "blocks", "live", "in flight", "cached", "holders"))
    for s in rows:
        holders = " ".join(map(str, s.holders)) or "-"
        owner = str(s.owner) if s.owner else "(dead)"
        sizes = (size(s.live_bytes), size(s.in_flight_bytes), size(s.cached_bytes))
        print(line.format(s.tree[:8], s.strategy, owner, f"{s.age:.1f} s", s.live_blocks, *sizes, holders))


def main() -> None:
    if sys.argv[1:] == ["stat"]:
        stat()
        return
    if sys.argv[1:]:
        sys.exit("usage: python -m mp_all [stat]")
    for title, rows in (
        ("versions", versions),
        ("sharing", sharing),
        ("limits", limits),
        ("this process", memory),
        ("CUDA", devices),
    ):
        print(title)
        for name, value in rows():
            print(f"  {name:<22}{value}")


if __name__ == "__main__":
    main()
