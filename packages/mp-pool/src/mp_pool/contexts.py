"""`Pool` as a method of multiprocessing's contexts: `get_context("spawn").Pool(4)` is a `mp_pool.Pool`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext

from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing import context
    from typing import Any, ClassVar, Literal, overload

    from mp_core.channels import coroutine_types
    from mp_core.channels.coroutine_types import Channels
    from mp_core.children.cpu_affinity import Cpus
    from mp_core.children.random_streams import Seed
    from mp_pool.pool import Pool
    from mp_pool.tasks.task_options import Errors


def _pool(
    self: BaseContext,
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
    **options: Any,
) -> Pool:
    """Return a `mp_pool.Pool` whose processes are of this context."""
    return imports.load("mp_pool.pool").Pool(  # type: ignore[no-any-return]
        processes, initializer, initargs, maxtasksperchild, context=self.get_context(), **options
    )


_pool.__name__ = "Pool"


def install() -> None:
    """Make `Pool` of every context return a `mp_pool.Pool`. `multiprocessing.Pool` itself stays unchanged."""
    BaseContext.Pool = _pool  # type: ignore[method-assign]


if TYPE_CHECKING:  # the contexts as `mp_all.get_context` returns them; at run time they are those of multiprocessing

    class _Pools:
        def Pool(
            self,
            processes: int | None = None,
            initializer: Callable[..., object] | None = None,
            initargs: Iterable[Any] = (),
            maxtasksperchild: int | None = None,
            *,
            retries: int = 0,
            timeout: float | None = None,
            retry_on: Errors = (),
            memory_limit: int | None = None,
            max_memory_per_child: int | None = None,
            threads_per_worker: int | None = None,
            cpu_affinity: Cpus = None,
            daemon: bool = True,
            seed: Seed = None,
            progress: bool = False,
            engine: Any = None,
        ) -> Pool: ...

    class DefaultContext(_Pools, Channels, context.DefaultContext):
        Process: ClassVar[type[coroutine_types.Process]]

    class ForkContext(_Pools, Channels, context.ForkContext):
        Process: ClassVar[type[coroutine_types.ForkProcess]]

    class SpawnContext(_Pools, Channels, context.SpawnContext):
        Process: ClassVar[type[coroutine_types.SpawnProcess]]

    class ForkServerContext(_Pools, Channels, context.ForkServerContext):
        Process: ClassVar[type[coroutine_types.ForkServerProcess]]

    @overload
    def get_context(method: None = None) -> DefaultContext: ...
    @overload
    def get_context(method: Literal["spawn"]) -> SpawnContext: ...
    @overload
    def get_context(method: Literal["fork"]) -> ForkContext: ...
    @overload
    def get_context(method: Literal["forkserver"]) -> ForkServerContext: ...
    @overload
    def get_context(method: str) -> DefaultContext | ForkContext | SpawnContext | ForkServerContext: ...
    def get_context(method: str | None = None) -> Any: ...
