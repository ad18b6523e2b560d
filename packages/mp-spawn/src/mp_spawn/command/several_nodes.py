"""What asks the command for several nodes: an option, or the launcher that has started it. mp-nodes does the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mp_spawn.ranks.rank_variables import INSIDE

#: The numbers of nodes in a step of Slurm, and of processes under Open MPI and other MPI launchers.
SIZES = ("SLURM_STEP_NUM_NODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def several_nodes(chosen: Any, environ: Mapping[str, str] = os.environ) -> str:
    """
    Return the option or variable that asks for several nodes; empty for a job of this machine alone.

    *chosen* has the options of the command.
    """
    if chosen.engine is not None:
        return f"--engine {chosen.engine}"
    if chosen.nnodes is not None:
        return f"--nnodes {chosen.nnodes}" if chosen.nnodes.most > 1 else ""
    if INSIDE in environ:
        return ""
    if chosen.node_rank is not None:
        return f"--node-rank {chosen.node_rank}"
    return next((f"{name}={environ[name]}" for name in SIZES if number_in(environ, name, 1) > 1), "")


def number_in(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the number of a variable, or *default* without it or if it is empty; `ValueError` names the variable."""
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number; unset it, or set a whole number") from None
