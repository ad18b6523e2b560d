"""The facts for a bug report: versions, strategy, limits, and who shares memory now."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import metadata

import mp_all
from mp_all import _sessions
from mp_all._limits import limits, size
from mp_all._stat import health
from mp_core.system import machine, settings

OURS = ("mp-all", "mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-nodes", "mp-cuda", "mp-torch")
PACKAGES = (*OURS, "numpy", "cffi", "cloudpickle", "torch")
#: Each extra that a feature needs, and what it installs.
EXTRAS = {
    "mp-all[cuda]": "cuda-bindings",
    "mp-all[joblib]": "joblib",
    "mp-all[prometheus]": "prometheus_client",
    "mp-all[ray]": "ray",
    "mp-all[top]": "rich",
}


def versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    libc = " ".join(platform.libc_ver()) or "libc unknown"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}, {libc}"
    for package in PACKAGES:
        yield package, installed(package)


def extras() -> Iterator[tuple[str, str]]:
    for extra, package in EXTRAS.items():
        yield extra, f"{package} {installed(package)}"


def installed(package: str) -> str:
    """Return the version of *package*, or that it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def sharing() -> Iterator[tuple[str, str]]:
    yield "strategy", f"{mp_all.get_sharing_strategy()} ({because('MP_SHARING_STRATEGY')})"
    if not machine.has_libshm():
        yield "memory", f"portable sharing on {machine.name()}"
    yield "start method", f"{mp_all.get_start_method()} (of {', '.join(mp_all.get_all_start_methods())})"
    yield "inline up to", f"{size(mp_all.get_inline_limit())} ({because('MP_INLINE_BYTES')})"
    shared = settings.shared_allocator()
    yield "NumPy allocates", f"in {'shared' if shared else 'private'} memory ({because('MP_SHARED_ALLOCATOR')})"
    if (cached := settings.cache_bytes()) is not None:
        yield "cached up to", f"{size(cached)} (MP_CACHE_BYTES)"
    if mp_all.get_message_timeout() is not None:
        yield "messages expire", f"{mp_all.get_message_timeout():g} s after they are sent (MP_MESSAGE_TIMEOUT)"
    if names := unread():
        yield "not read", names
    for strategy in sorted(mp_all.get_all_sharing_strategies()):
        yield f"try {strategy}", tried(strategy)


def unread() -> str:
    """Return the variables in the environment that begin like ours and are not read."""
    return ", ".join(name + (f" (did you mean {meant}?)" if meant else "") for name, meant in settings.unknown())


def because(variable: str) -> str:
    """Return the origin of a setting."""
    return f"from {variable}" if settings.is_set(variable) else f"the default; {variable} is not set"


def tried(strategy: str) -> str:
    """Return whether an array can be made by *strategy* now, and if not, why."""
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
    """Yield the other sessions of this user, their managers, and leftovers of crashes."""
    sessions = _sessions.sessions()  # before this process looks into them, and makes them live
    segments = mp_all.list_segments()
    own = {segment.session for segment in segments if segment.owner == os.getpid()}
    sessions = [session for session in sessions if session.name not in own]
    for session in sessions:
        inside = [segment for segment in segments if segment.session == session.name]
        holders = {pid for segment in inside for pid in segment.holders}
        live = sum(segment.live_bytes for segment in inside)
        use = f"{size(live)} in use, segments: {len(inside)}, processes: {len(holders)}"
        yield session.name[:8], f"{health(session)}; {use}" if session.alive else health(session)
    names = _sessions.leftover_names()
    if names:
        yield "left in /dev/shm", f"{len(names)} names ({names[0]}, ...); the next program that shares removes them"
    if not sessions and not names:
        yield "-", "no process of this user shares memory now, and nothing is left behind"


def devices() -> Iterator[tuple[str, str]]:
    if machine.system() != "linux":
        yield "devices", "mp-cuda is for Linux"
        return
    import mp_cuda

    yield from mp_cuda.device_report()


def main() -> None:
    facts: dict[str, Iterable[tuple[str, str]]] = {"versions": versions(), "extras": extras(), "sharing": sharing()}
    if machine.has_libshm():  # these are of shared memory, from files of Linux
        # Looked at first: who tries to share, as `sharing` does, removes what a crash has left.
        facts |= {"limits": limits(), "shared now": [*now()]}
    facts["CUDA"] = devices()
    for title, rows in facts.items():
        print(title)
        for name, value in rows:
            print(f"  {name:<22}{value}")
