"""The options of the command for the number of ranks, their processors, devices, environment, time and output."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path
from typing import Any

from mp_core.control_groups import processors
from mp_spawn.tee import Tee

__all__ = ["add_options", "bound_to", "count_ranks", "devices_of", "output_of", "program_of", "variables_of"]

NVIDIA_DEVICES = "/dev"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to *parser*."""
    ranks = parser.add_argument_group("processors, devices and environment")
    ranks.add_argument(
        "--bind",
        metavar="WHERE",
        help="spread: the ranks over the processors of this process; or a set for each rank, as in 0-3:4-7",
    )
    ranks.add_argument(
        "--gpus-per-rank", type=int, metavar="K", help="set CUDA_VISIBLE_DEVICES to the next K devices for each rank"
    )
    ranks.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable for every rank; may be repeated",
    )
    time = parser.add_argument_group("time")
    time.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="end ranks that still run then, with their Python stacks and the exit code 124",
    )
    time.add_argument(
        "--grace-period",
        type=float,
        metavar="SECONDS",
        help="time for the other ranks after a failure, before SIGTERM (default 0.1)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--log-dir", metavar="FOLDER", help="a file per rank and stream there; as --output ./FOLDER")
    output.add_argument("--tee", action="store_true", help="with --log-dir: print it, too, with the rank in front")
    parser.add_argument("--no-python", action="store_true", help="run a program of any kind instead of a Python script")


def count_ranks(text: str, threads_per_rank: int | None = None, gpus_per_rank: int | None = None) -> int:
    """
    Return the number of ranks for ``-n``; for ``auto`` as many as there are devices or processors for.

    >>> count_ranks("4")
    4
    """
    if text != "auto":
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"-n {text} is no number; give one, or auto") from None
    if gpus_per_rank:
        return max(1, len(visible_devices()) // gpus_per_rank)
    return max(1, int(processors()) // (threads_per_rank or 1))


def visible_devices() -> list[str]:
    """Return the CUDA devices of this process: those of CUDA_VISIBLE_DEVICES, or the numbers of all there are."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in (part.strip() for part in named.split(",")) if name and name != "-1"]
    return [
        str(k) for k, _ in enumerate(path for path in os.listdir(NVIDIA_DEVICES) if re.fullmatch(r"nvidia\d+", path))
    ]


def devices_of(rank: int, gpus_per_rank: int | None, nprocs: int) -> dict[str, str]:
    """Return the variables that give a rank its devices."""
    if gpus_per_rank is None:
        return {}
    if gpus_per_rank < 1:
        raise ValueError(f"--gpus-per-rank {gpus_per_rank} is too small; give 1 or more")
    devices = visible_devices()
    if len(devices) < nprocs * gpus_per_rank:
        raise ValueError(
            f"{nprocs} ranks with {gpus_per_rank} devices each need {nprocs * gpus_per_rank}, and this process has "
            f"{len(devices)} ({','.join(devices) or 'none'}); give fewer ranks, or -n auto"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[rank * gpus_per_rank : (rank + 1) * gpus_per_rank])}


def variables_of(pairs: list[str]) -> dict[str, str]:
    """
    Return the variables of ``--env``.

    >>> variables_of(["A=1", "B=x=y"])
    {'A': '1', 'B': 'x=y'}
    """
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ValueError(f"--env {pair} is no variable; give NAME=VALUE")
        variables[name] = value
    return variables


def bound_to(text: str | None, nprocs: int) -> Any:
    """Return the processors of ``--bind``, as ``cpu_affinity`` takes them."""
    if text is None or text == "spread":
        return text
    sets = sets_of(text)
    if len(sets) != nprocs:
        raise ValueError(f"--bind {text} has {len(sets)} sets for {nprocs} ranks; give one for each, or spread")
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("--bind is not supported on this system; leave it out")
    if missing := sorted(set[int]().union(*sets) - os.sched_getaffinity(0)):
        raise ValueError(f"--bind {text} names processor {missing[0]}, which this process may not use")
    return sets


def sets_of(text: str) -> list[set[int]]:
    """
    Return the sets of processors in *text*.

    >>> sets_of("0-2:4,6")
    [{0, 1, 2}, {4, 6}]
    """
    if not re.fullmatch(r"\d+(-\d+)?([,:]\d+(-\d+)?)*", text):
        raise ValueError(f"--bind {text} is neither spread nor a set of processors for each rank, as in 0-3:4-7")
    return [set[int]().union(*(_range(part) for part in each.split(","))) for each in text.split(":")]


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def output_of(chosen: argparse.Namespace) -> str | Path | Tee:
    """Return what ``--output``, ``--log-dir`` and ``--tee`` ask for."""
    if chosen.log_dir is None:
        if chosen.tee:
            raise ValueError("--tee needs --log-dir FOLDER, the place of the files")
        return str(chosen.output)
    if chosen.output != "prefix":
        raise ValueError("give --log-dir or --output, and not both")
    return Tee(chosen.log_dir) if chosen.tee else Path(chosen.log_dir)


def program_of(name: str) -> str:
    """Return the path of a program for ``--no-python``."""
    found = shutil.which(name)
    if found is None:
        raise ValueError(f"there is no program {name!r}; give one on PATH, or a path of an executable file")
    return found
