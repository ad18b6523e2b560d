"""The old name of `ProcessContext`, which torch has, too."""

from __future__ import annotations

import warnings
from multiprocessing.process import BaseProcess

from mp_spawn.context import ProcessContext

__all__ = ["SpawnContext"]


class SpawnContext(ProcessContext):
    """
    The old name of `ProcessContext`, which warns.

    Parameters
    ----------
    processes, error_files
        As its attributes.

    Examples
    --------
    >>> issubclass(mp.SpawnContext, mp.ProcessContext)
    True
    """

    def __init__(self, processes: list[BaseProcess], error_files: list[str]) -> None:
        warnings.warn("SpawnContext is an old name; use ProcessContext", DeprecationWarning, stacklevel=2)
        super().__init__(processes, error_files)
