"""The modules that children need of mp_core: the fork server imports this one; see `_forkserver.py`."""

from __future__ import annotations

from mp_core import _channel_queues, _contexts, _queue_locks, children, install, lease, locks  # noqa: F401

__all__: list[str] = []

install()
