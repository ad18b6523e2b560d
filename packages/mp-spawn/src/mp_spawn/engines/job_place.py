"""`JobPlace`: this node's place in a job, as Slurm, an MPI launcher or the command's options tell it."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["JobPlace", "first_host", "place_in_job"]

# Set for each rank: a command that a rank starts is no node of the job.
INSIDE = "MP_SPAWN_INSIDE"
KEY = "MP_SPAWN_KEY"
# torchrun's.
DEFAULT_PORT = 29500
HOW_TO_KEY = (
    f"the nodes need a common secret, so that they take orders from nobody else: export {KEY}=$(openssl rand -hex 32) "
    f"before srun or mpirun (mpirun -x {KEY} for Open MPI), or give --key-file with a file that only you can read"
)


class JobPlace(NamedTuple):
    """A node's number, and where the nodes meet."""

    nnodes: int
    node_rank: int
    host: str
    port: int
    key: bytes


def place_in_job(chosen: Any, environ: Mapping[str, str] = os.environ) -> JobPlace | None:
    """
    Return this node's place, or None for a job on one machine. *chosen* has the options of the command.

    Raises `ValueError` with what is missing.
    """
    given = (chosen.nnodes, chosen.node_rank)
    if chosen.nnodes == 1 or (chosen.nnodes is None and INSIDE in environ):
        return None
    nnodes, node_rank, host, identity = _by_launcher(environ) if given == (None, None) else (*given, None, "")
    if nnodes is None and node_rank is None:
        return None
    if nnodes is None or node_rank is None:
        raise ValueError("a job by hand needs both --nnodes and --node-rank")
    if not 0 <= node_rank < nnodes:
        raise ValueError(f"--node-rank {node_rank} is not below --nnodes {nnodes}; number the nodes from 0")
    host = chosen.master_addr or environ.get("MASTER_ADDR") or host
    if not host:
        raise ValueError("the address of node 0 is not known; give --master-addr")
    key = _key(chosen.key_file, environ)
    port = chosen.master_port or int(environ.get("MASTER_PORT", 0))
    if not port:
        # Below the ports that the system gives to others; two jobs on one machine have different ones.
        port = 20000 + zlib.crc32(identity.encode()) % 10000 if identity else DEFAULT_PORT
    return JobPlace(nnodes, node_rank, host, port, key)


def _by_launcher(environ: Mapping[str, str]) -> tuple[int | None, int | None, str | None, str]:
    """
    Return the number of nodes, this node, the address of node 0 and a name of the job; None for each if there is none.
    """
    if (nodes := int(environ.get("SLURM_STEP_NUM_NODES", 1))) > 1:
        tasks = int(environ.get("SLURM_STEP_NUM_TASKS", nodes))
        if tasks != nodes:
            raise ValueError(f"srun has started {tasks} tasks on {nodes} nodes; give srun --ntasks-per-node 1")
        host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
        identity = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        return nodes, int(environ["SLURM_NODEID"]), host, identity
    for size, rank, local, job in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "PMI_ID_OF_JOB"),
    ):
        if (nodes := int(environ.get(size, 1))) > 1:
            on_one_machine = environ.get(local) == environ[size]
            identity = environ.get(job) or environ.get(KEY, "")
            return nodes, int(environ[rank]), "127.0.0.1" if on_one_machine else None, identity
    return None, None, None, ""


def _key(path: str | None, environ: Mapping[str, str]) -> bytes:
    if path is not None:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"others can read {path!r}, which is to be a secret; chmod 600 it")
            key = file.read().strip()
    else:
        key = environ.get(KEY, "").encode()
    if len(key) < 16:
        raise ValueError(HOW_TO_KEY if not key else f"the key has {len(key)} characters; give 16 or more. {HOW_TO_KEY}")
    return key


def first_host(nodelist: str) -> str:
    """
    Return the first host of a list as Slurm writes it.

    >>> first_host("node[07-09,12]-ib,gpu3"), first_host("a,b")
    ('node07-ib', 'a')
    """
    prefix, bracket, rest = re.fullmatch(r"([^,\[]*)(\[?)(.*)", nodelist, re.DOTALL).groups()  # type: ignore[union-attr]
    if not bracket:
        return prefix
    inside, _, suffix = rest.partition("]")
    return prefix + re.split("[-,]", inside)[0] + suffix.split(",")[0]
