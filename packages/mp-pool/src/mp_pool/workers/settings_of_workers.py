"""`settings_for`: the settings of workers from the keywords of a pool or an executor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from mp_pool.tasks.task_options import check_numbers
from mp_pool.workers.environment import for_threads
from mp_pool.workers.notebook import is_notebook
from mp_pool.workers.worker_main import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.children.cpu_affinity import Cpus
    from mp_core.children.random_streams import Seed


def settings_for(
    workers: int,
    context: Any,
    initializer: Callable[..., object] | None,
    initargs: Iterable[Any],
    max_tasks: int | None,
    *,
    max_memory_per_child: int | None,
    threads_per_worker: int | None,
    cpu_affinity: Cpus,
    ends_children: bool,
    seed: Seed,
    is_executor: bool,
) -> Settings:
    """Return the settings of so many workers, started by *context*; raise an error that names the wrong keyword."""
    check_numbers(max_memory_per_child=max_memory_per_child, threads_per_worker=threads_per_worker)
    cpus = checked = None
    if cpu_affinity is not None:
        from mp_core.children.cpu_affinity import cpus_for

        cpus = cpus_for(cpu_affinity, workers, "workers")
    if seed is not None:
        from mp_core.children.random_streams import checked_seed

        checked = checked_seed(seed)
    forks = context.get_start_method(allow_none=False) == "fork"
    environment = for_threads(threads_per_worker, forks)
    return Settings(
        initializer,
        tuple(initargs),
        max_tasks,
        max_memory_per_child,
        is_executor,
        environment,
        forks,
        cpus,
        ends_children,
        checked,
        "ipykernel" in sys.modules and is_notebook(),
    )
