"""Contexts whose pipes and queues are channels: subclasses of multiprocessing's, which stay as they are.

    mp_all.get_context("spawn")            SpawnContext of this module
    multiprocessing.get_context("spawn")   multiprocessing's own, with ordinary pipes

The start method is one for both: `default_context` reads and sets that of multiprocessing.
"""

from __future__ import annotations

from multiprocessing import context
from multiprocessing.context import BaseContext

from mp_core.installation.queue_functions import QueueFunction
from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The names of `mp_all` that are bound methods of `default_context`.
NAMES = ("JoinableQueue", "Manager", "Pipe", "Queue", "SimpleQueue", "get_context", "set_start_method")

_standard: Any = vars(context)


def _channel_module() -> Any:
    return imports.load("mp_core.channels.channel_connections")


def _queue_module() -> Any:
    return imports.load("mp_core.channels.channel_queues")


def _refuse(*args: Any, **options: Any) -> Any:
    imports.load("mp_core.channels.coroutines").refuse("queue")


class _Channels:
    """The methods of a context that make channels, or ordinary pipes where there can be no channel."""

    def Pipe(self, duplex: bool = True) -> tuple[Any, Any]:
        """Return two connections, one for each end of a pipe."""
        return _channel_module().pipe(duplex)  # type: ignore[no-any-return]

    def SimpleQueue(self: Any) -> Any:
        """Return a simple queue."""
        return self._queue("SimpleQueue")

    def Queue(self: Any, maxsize: int = 0) -> Any:
        """Return a queue with room for *maxsize* objects."""
        return self._queue("Queue", maxsize)

    def JoinableQueue(self: Any, maxsize: int = 0) -> Any:
        """Return a queue with `task_done` and `join`."""
        return self._queue("JoinableQueue", maxsize)

    def _queue(self: Any, kind: str, *maxsize: int) -> Any:
        ends = _channel_module().make_pair(False)
        if ends is None:
            queue = getattr(super(), kind)(*maxsize)
            queue.aget = queue.aput = _refuse
            return queue
        return getattr(_queue_module(), kind)(ends, *maxsize)

    def Manager(self: Any) -> Any:
        """Return a started manager, which its proxies call through channels."""
        from mp_core.channels.manager_channels import SyncManager

        manager = SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    def get_context(self: Any, method: str | None = None) -> Any:
        """Return the context of a start method, or this one."""
        if method is None:
            return self
        try:
            standard = BaseContext.get_context(self, method)
        except ValueError:
            methods = ", ".join(map(repr, default_context.get_all_start_methods()))
            raise ValueError(f"cannot find context for {method!r}; the start methods here are {methods}") from None
        if method != "fork":
            imports.load("mp_core.children.main_module").receivers_may_differ()
        return _contexts.get(method, standard)


class ForkContext(_Channels, context.ForkContext):
    """The context of ``fork``."""


class SpawnContext(_Channels, context.SpawnContext):
    """The context of ``spawn``."""


class ForkServerContext(_Channels, context.ForkServerContext):
    """The context of ``forkserver``."""


_contexts: dict[str, Any] = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}


class DefaultContext(_Channels, context.DefaultContext):
    """The context of the start method that is in force."""

    def get_context(self, method: str | None = None) -> Any:
        """Return the context of a start method, by default of the one in force."""
        if method is not None:
            return super().get_context(method)
        actual = _standard["_default_context"].get_context()
        return _contexts.get(actual._name, actual)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """Set the start method, for multiprocessing too."""
        actual = _standard["_default_context"]
        if actual._actual_context is not None and not force:
            raise RuntimeError(
                f"context has already been set, to {actual.get_start_method()!r}: by set_start_method, or by the "
                "first process, queue or lock; set it once, before these, or pass force=True"
            )
        actual.set_start_method(method, force)

    def get_start_method(self, allow_none: bool = False) -> Any:
        """Return the start method."""
        return _standard["_default_context"].get_start_method(allow_none)


default_context = DefaultContext(_standard["_concrete_contexts"]["fork"])


def _default() -> DefaultContext:
    return default_context


def function(name: str) -> Any:
    """Return the function of `mp_all` that calls the method *name* of `default_context`."""
    if name.endswith("Queue"):
        return QueueFunction(_default, name)
    return getattr(default_context, name)
