"""`python -m mp_all`: what a bug report needs. `python -m mp_all stat`: every segment and who has it."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata

import mp_all
from mp_all import _trees
from mp_all._limits import limits, size

__all__ = ["main"]

OURS = ("mp-all", "mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-cuda")
PACKAGES = (*OURS, "numpy", "cffi", "cuda-python", "torch")


def versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    libc = " ".join(platform.libc_ver()) or "libc unknown"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}, {libc}"
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


def sharing() -> Iterator[tuple[str, str]]:
    yield "strategy", f"{mp_all.get_sharing_strategy()} ({because('MP_SHARING_STRATEGY')})"
    yield "start method", f"{mp_all.get_start_method()} (of {', '.join(mp_all.get_all_start_methods())})"
    yield "inline up to", f"{size(mp_all.get_inline_limit())} ({because('MP_INLINE_BYTES')})"
    born = os.environ.get("MP_SHARED_ALLOCATOR") == "1"
    yield "arrays are born", f"{'shared' if born else 'private'} ({because('MP_SHARED_ALLOCATOR')})"
    if os.environ.get("MP_CACHE_BYTES"):
        yield "kept warm up to", f"{os.environ['MP_CACHE_BYTES']} (MP_CACHE_BYTES)"
    for strategy in sorted(mp_all.get_all_sharing_strategies()):
        yield f"try {strategy}", tried(strategy)


def because(variable: str) -> str:
    """Where a setting comes from."""
    return f"from {variable}" if os.environ.get(variable) else f"the default; {variable} is not set"


def tried(strategy: str) -> str:
    """Whether an array can be made by that strategy now, and if not, why."""
    before = mp_all.get_sharing_strategy()
    mp_all.set_sharing_strategy(strategy)
    begin = time.perf_counter()
    try:
        mp_all.shared.ones(1)
    except (MemoryError, OSError) as error:
        return f"FAILED: {error}"
    finally:
        mp_all.set_sharing_strategy(before)
    return f"works; an array was made in {1000 * (time.perf_counter() - begin):.1f} ms"


def now() -> Iterator[tuple[str, str]]:
    """The trees of this user but for our own, their managers, and what was left behind."""
    own = {segment.tree for segment in mp_all.list_segments() if segment.owner == os.getpid()}
    trees = [tree for tree in _trees.trees() if tree.name not in own]
    segments = mp_all.list_segments()
    for tree in trees:
        of_tree = [segment for segment in segments if segment.tree == tree.name]
        holders = {pid for segment in of_tree for pid in segment.holders}
        held = sum(segment.live_bytes for segment in of_tree)
        what = f"{size(held)} held, segments: {len(of_tree)}, processes: {len(holders)}"
        yield tree.name[:8], f"{health(tree)}; {what}" if tree.alive else health(tree)
    names = _trees.leftover_names()
    if names:
        yield "left in /dev/shm", f"{len(names)} names ({names[0]}, ...); the next program that shares removes them"
    if not trees and not names:
        yield "-", "nobody of this user shares memory now, and nothing is left behind"


def health(tree: _trees.Tree) -> str:
    """The state of a tree's manager, and what follows from it."""
    if tree.manager is not None:
        remedy = tree.manager.remedy()
        return f"manager {tree.manager.pid}" + (f" ({remedy})" if remedy else "")
    if tree.alive:
        return "no manager; the next process that needs one starts it"
    return "left behind by a crash of everything; the next program that shares removes it"


def devices() -> Iterator[tuple[str, str]]:
    if sys.platform != "linux":
        yield "devices", "mp-cuda is for Linux"
        return
    import mp_cuda

    yield from mp_cuda.situation()


def stat() -> None:
    """Each tree of this user, a line for each segment in them, and which processes have them."""
    own = os.getpid()
    trees = _trees.trees()
    for tree in trees:
        print(f"{tree.name[:8]}  {health(tree)}", flush=True)  # before somebody waits for a manager that is stopped
    rows = [segment for segment in mp_all.list_segments() if segment.owner != own]
    if not rows:
        print("no segment could be listed" if trees else "nobody of this user shares memory now")
        return
    line = "{:<10}{:<17}{:>8}{:>9}{:>9}{:>12}{:>12}{:>12}  {}"
    print()
    print(line.format("tree", "strategy", "owner", "age", "blocks", "live", "in flight", "cached", "holders"))
    for s in rows:
        holders = " ".join(map(str, s.holders)) or "-"
        owner = str(s.owner) if s.owner else "(dead)"
        sizes = (size(s.live_bytes), size(s.in_flight_bytes), size(s.cached_bytes))
        print(line.format(s.tree[:8], s.strategy, owner, f"{s.age:.1f} s", s.live_blocks, *sizes, holders))
    print()
    for pid in sorted({pid for s in rows for pid in (s.owner, *s.holders)} - {0, own}):
        print(f"{pid:>8}  {_trees.command_of(pid)}")


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
        ("shared now", now),
        ("CUDA", devices),
    ):
        print(title)
        for name, value in rows():
            print(f"  {name:<22}{value}")


if __name__ == "__main__":
    main()
