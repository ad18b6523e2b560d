"""`dask_options`: dask's processes on an executor of mp_pool, with arrays in shared memory."""

from __future__ import annotations

from typing import Any


def dask_options(pool: Any) -> dict[str, Any]:
    """
    Return the options by which dask runs its tasks in *pool*, and sends their arrays through shared memory.

    With ``pool=`` alone, dask pickles each task and each result to bytes itself.

    Parameters
    ----------
    pool : ProcessPoolExecutor
        The executor. Its workers stay from one computation to the next.

    Returns
    -------
    dict
        For ``dask.config.set``: *scheduler*, *pool*, *func_dumps* and *func_loads*.

    Examples
    --------
    >>> with mp.ProcessPoolExecutor(2) as pool:  # doctest: +SKIP
    ...     with dask.config.set(mp.dask_options(pool)):
    ...         print(dask.array.ones(10**7).sum().compute())
    10000000.0
    """
    return {"scheduler": "processes", "pool": pool, "func_dumps": _dumps, "func_loads": _loads}


def _dumps(thing: Any) -> Any:
    from mp_all._integrations.sent import Sent  # cloudpickle, which dask also needs

    return Sent(thing)


def _loads(thing: Any) -> Any:
    return thing  # the executor has unpickled it
