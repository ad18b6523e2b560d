"""Refuse a pool where gevent or eventlet has replaced threads: its thread would wait, and with it all the others."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_threads() -> None:
    """Raise `RuntimeError` where a library has replaced the threads of this program, or how children are waited for."""
    gevent: Any = sys.modules.get("gevent.monkey")
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if gevent is not None and any(map(gevent.is_module_patched, ("threading", "os"))):
        name, patch = "gevent", "gevent.monkey.patch_all(thread=False, os=False, subprocess=False, signal=False)"
    elif eventlet is not None and any(map(eventlet.is_monkey_patched, ("thread", "os"))):
        name, patch = "eventlet", "eventlet.monkey_patch(thread=False, os=False, select=False)"
    else:
        return
    raise RuntimeError(
        f"{name} has replaced threads or os, and a pool would wait for ever: call {patch}, "
        "make the pool in a process without it, or use the standard library's executor"
    )
