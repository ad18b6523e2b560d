"""The values of the command's options: the number of ranks, their processors, devices, environment, time and output."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from mp_core.system.control_groups import processors
from mp_spawn.calls.payload import Call
from mp_spawn.output.streams import NO_STREAM, Selection, Streams
from mp_spawn.ranks.program import folder_of, run_code, run_executable, run_module, run_script
from mp_spawn.ranks.rank_variables import OF_A_RANK, job_variables

NVIDIA_DEVICES = "/dev"
#: Makes a block whose run is recorded, if ``--timeline`` is given.
Recording = Callable[[], AbstractContextManager[None]]


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


def count_per_node(text: str | None) -> int:
    """
    Return the number of ranks for ``--nproc-per-node``.

    >>> count_per_node("4"), count_per_node(None)
    (4, 1)
    """
    if text in ("auto", "gpu") and (devices := visible_devices()):
        return len(devices)
    if text == "gpu":
        raise ValueError("--nproc-per-node gpu finds no CUDA device here; give a number, or cpu")
    if text in ("auto", "cpu"):
        return max(1, int(processors()))
    try:
        count = int(text or 1)
    except ValueError:
        raise ValueError(f"--nproc-per-node {text} is no number; give one, or auto, cpu or gpu") from None
    if count < 1:
        raise ValueError(f"--nproc-per-node {count} is too small; give 1 or more")
    return count


def visible_devices() -> list[str]:
    """
    Return the CUDA devices of this process: those of CUDA_VISIBLE_DEVICES, or the numbers of all there are. To CUDA, a
    name that is none ends the list.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        parts = (part.strip() for part in named.split(","))
        return [*takewhile(lambda name: name and not name.startswith("-"), parts)]
    return [
        str(k) for k, _ in enumerate(path for path in os.listdir(NVIDIA_DEVICES) if re.fullmatch(r"nvidia\d+", path))
    ]


def devices_by_rank(gpus_per_rank: int | None, nprocs: int) -> dict[int, dict[str, str]]:
    """Return the variables that give each rank its devices; nothing without ``--gpus-per-rank``."""
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
    return {
        rank: {"CUDA_VISIBLE_DEVICES": ",".join(devices[rank * gpus_per_rank : (rank + 1) * gpus_per_rank])}
        for rank in range(nprocs)
    }


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
        if name in OF_A_RANK:
            raise ValueError(f"--env {pair}: the launcher sets {name} for each rank; leave it out")
        variables[name] = value
    return variables


def bound_to(text: str | None, nprocs: int) -> Any:
    """Return the processors of ``--bind``, as ``cpu_affinity`` takes them."""
    if text is None or text == "spread":
        return text
    sets = ranges_of(text)
    if len(sets) != nprocs:
        raise ValueError(f"--bind {text} has {len(sets)} sets for {nprocs} ranks; give one for each, or spread")
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("--bind is not supported on this system; leave it out")
    mine = os.sched_getaffinity(0)
    # Before there is a set: that of a long range would fill the memory.
    missing = next((number for numbers in sets for number in chain(*numbers) if number not in mine), None)
    if missing is not None:
        raise ValueError(f"--bind {text} names processor {missing}, which this process may not use")
    return [set(chain(*numbers)) for numbers in sets]


def ranges_of(text: str) -> list[list[range]]:
    """
    Return the ranges of processors in *text*, for each rank.

    >>> ranges_of("0-2:4,6")
    [[range(0, 3)], [range(4, 5), range(6, 7)]]
    """
    if not re.fullmatch(r"\d+(-\d+)?([,:]\d+(-\d+)?)*", text):
        raise ValueError(f"--bind {text} is neither spread nor a set of processors for each rank, as in 0-3:4-7")
    return [[_range(part) for part in each.split(",")] for each in text.split(":")]


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    found = range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(f"--bind: {text} is no range of processors; give the smaller number first")
    return found


def output_of(chosen: argparse.Namespace) -> str | Path | Streams:
    """Return what ``--output``, ``--log-dir``, ``--redirects``, ``--tee`` and ``--local-ranks-filter`` ask for."""
    if chosen.log_dir == "":
        raise ValueError("--log-dir is an empty text; give a folder, ./ for the current one")
    selects = chosen.redirects is not None or chosen.tee is not None
    if not selects and chosen.local_ranks_filter is None:
        if chosen.log_dir is None:
            return str(chosen.output)
        if chosen.output != "prefix":
            raise ValueError("give --log-dir or --output, and not both")
        return Path(chosen.log_dir)
    if chosen.output != "prefix":
        raise ValueError("give --redirects, --tee and --local-ranks-filter, or --output, and not both")
    shown = None if chosen.local_ranks_filter is None else ranks_of(chosen.local_ranks_filter)
    if chosen.log_dir is None and not selects:
        return Streams("", NO_STREAM, NO_STREAM, shown)
    redirects = Selection.of("--redirects", chosen.redirects or ("0" if selects else "3"))
    return Streams(chosen.log_dir or "", redirects, Selection.of("--tee", chosen.tee or "0"), shown)


def check_shown(output: str | Path | Streams, nprocs: int) -> None:
    """Raise `ValueError` if ``--local-ranks-filter`` leaves the output of none of *nprocs* ranks."""
    if isinstance(output, Streams) and output.shown is not None and min(output.shown) >= nprocs:
        shown = ",".join(map(str, sorted(output.shown)))
        raise ValueError(f"--local-ranks-filter {shown} is none of the ranks 0 to {nprocs - 1}; nothing would be shown")


def with_folder(output: str | Path | Streams) -> str | Path | Streams:
    """Return *output* with a new folder for its files if it needs one, of which the user is told."""
    if not isinstance(output, Streams) or output.folder or not output.need_folder():
        return output
    folder = tempfile.mkdtemp(prefix="mp-spawn-")
    print(f"mp-spawn: the output of the ranks goes to files in {folder}; give --log-dir for another", file=sys.stderr)
    return output._replace(folder=folder)


def ranks_of(text: str) -> frozenset[int]:
    """
    Return the numbers of ``--local-ranks-filter``.

    >>> sorted(ranks_of("0,2"))
    [0, 2]
    """
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"--local-ranks-filter {text} is no list of ranks; give their numbers on a node, as in 0,2")
    return frozenset(map(int, text.split(",")))


def call_of(chosen: argparse.Namespace) -> Call:
    """Return the function that each rank calls to run its program, and the function's arguments after the rank."""
    if chosen.no_python:
        return run_executable, (_executable(chosen.script), chosen.arguments)
    if chosen.module or chosen.code:
        return run_module if chosen.module else run_code, (chosen.script, chosen.arguments)
    if not os.path.exists(chosen.script):
        instead = (
            "for a program on standard input, give /dev/stdin" if chosen.script == "-" else "for a module, give -m"
        )
        raise ValueError(f"there is no file {chosen.script!r}; {instead}")
    source = None
    # A descriptor of this process, such as a shell's <(...), or a pipe: read once for all ranks.
    is_ours = chosen.script.startswith(("/dev/", "/proc/"))
    if is_ours or not (os.path.isfile(chosen.script) or os.path.isdir(chosen.script)):
        source = Path(chosen.script).read_bytes(), folder_of(chosen.script)
    return run_script, (chosen.script, source, chosen.arguments)


def _executable(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ValueError(f"there is no program {name!r}; give one on PATH, or a path of an executable file")
    return found


def restarts_all(chosen: argparse.Namespace) -> bool:
    """Tell whether a failure has all ranks started again. See Note [Torchrun's lines]."""
    return bool(chosen.restart == "all" or (chosen.restart is None and chosen.nprocs is None))


def common_variables(chosen: argparse.Namespace, per_node: int) -> dict[str, str]:
    common = job_variables(chosen.role, chosen.rdzv_id or "none", chosen.max_restarts)
    # As torchrun does, which counts by node as well.
    if (
        chosen.nprocs is None
        and chosen.threads_per_rank is None
        and per_node > 1
        and "OMP_NUM_THREADS" not in os.environ
    ):
        common["OMP_NUM_THREADS"] = "1"
    return common | variables_of(chosen.env)


def recorder_of(path: str | None) -> Recording:
    """Return the timeline for ``--timeline``, which begins where the ranks are started: on one node of several."""
    if path is None:
        return nullcontext
    from mp_core.timeline import timeline

    asked = timeline(path)

    @contextmanager
    def recording() -> Iterator[None]:
        try:
            asked.begin()
        except (OSError, RuntimeError) as refusal:
            print(f"mp-spawn: {refusal}", file=sys.stderr)
            raise SystemExit(2) from None
        with asked:
            yield

    return recording
