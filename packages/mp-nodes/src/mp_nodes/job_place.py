"""`JobPlace`: this node's place in a job, as Slurm, an MPI launcher or the command's options tell it.

Note [The key and the port]
---------------------------
The key is all that distinguishes a node from another peer, and a recorded handshake lets its owner try keys at leisure.
So a key that cannot have 128 random bits is refused: one that is too short for its alphabet, or has few different
characters.
Whether it is random nobody can see.

Everybody on the machine can see the port. A checksum of the key as the port would tell 13 bits of the key. So, where
the launcher gives the job no name, the port comes from an HMAC, which tells nothing about a random key. A port that
others can guess is no danger: who takes it first is not believed, and node 0 says that it is taken.
"""

from __future__ import annotations

import hmac
import math
import os
import re
import stat
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from mp_spawn.command.rendezvous import Conf
from mp_spawn.command.several_nodes import number_in, several_nodes

KEY = "MP_SPAWN_KEY"
KEY_BITS = 128
# A random key of the smallest alphabet, that of decimal digits, has fewer in one case of a billion.
DIFFERENT = 6
# The number of a node that node 0 is to number.
AS_IT_COMES = 0xFFFFFFFF
# torchrun's.
DEFAULT_PORT = 29500
HOW_TO_KEY = (
    f"the nodes need a common secret, so that they take orders from nobody else: export {KEY}=$(openssl rand -hex 32) "
    f"before srun or mpirun (mpirun -x {KEY} for Open MPI), or give --key-file with a file that only you can read"
)


class JobPlace(NamedTuple):
    """A node's number, and where the nodes meet."""

    nnodes: int
    #: None if the node at which the others meet is to be node 0, and this may be that one.
    node_rank: int | None
    host: str
    port: int
    key: bytes
    #: The job begins with fewer nodes than `nnodes` if there are so many, and no more come.
    least: int
    conf: Conf


def place_in_job(chosen: Any, environ: Mapping[str, str] = os.environ) -> JobPlace | None:
    """
    Return this node's place, or None for a job on one machine. *chosen* has the options of the command.

    Raises `ValueError` with what is missing.
    """
    if not several_nodes(chosen, environ):
        return None
    given = (None if chosen.nnodes is None else chosen.nnodes.most, chosen.node_rank)
    nnodes, node_rank, host, identity = _by_launcher(environ) if given == (None, None) else (*given, None, None)
    conf = chosen.rdzv_conf or Conf()
    if node_rank is None:
        node_rank = conf.rank
    comes = node_rank is None and chosen.rdzv_backend == "c10d"
    if nnodes is None or (node_rank is None and not comes):
        raise ValueError(
            "a job by hand needs both --nnodes and --node-rank, or --nnodes and --rdzv-backend c10d, which numbers the "
            "nodes as they come"
        )
    if comes and conf.is_host is not None:
        node_rank = 0 if conf.is_host else AS_IT_COMES
    elif node_rank is not None and not 0 <= node_rank < nnodes:
        raise ValueError(f"--node-rank {node_rank} is not below --nnodes {nnodes}; number the nodes from 0")
    host = chosen.master_addr or environ.get("MASTER_ADDR") or host
    if not host:
        raise ValueError("the address of node 0 is not known; give --master-addr or --rdzv-endpoint")
    key = _key(chosen.key_file, environ)
    if chosen.rdzv_id is not None:  # so that a node of another job is none of this one
        key = hmac.digest(key, b"mp-spawn job " + chosen.rdzv_id.encode(), "sha256")
    port = chosen.master_port or number_in(environ, "MASTER_PORT", 0)
    if not port:
        # Below the ports that the system gives to others; two jobs on one machine have different ones.
        port = DEFAULT_PORT if identity is None else 20000 + _number(identity, key) % 10000
    least = nnodes if chosen.nnodes is None else chosen.nnodes.least
    return JobPlace(nnodes, node_rank, host, port, key, least, conf)


def _by_launcher(environ: Mapping[str, str]) -> tuple[int | None, int | None, str | None, str | None]:
    """
    Return the number of nodes, this node, the address of node 0 and a name of the job, which may be empty.

    None for each that there is not.
    """
    if (nodes := number_in(environ, "SLURM_STEP_NUM_NODES", 1)) > 1:
        tasks = number_in(environ, "SLURM_STEP_NUM_TASKS", nodes)
        if tasks != nodes:
            raise ValueError(f"srun has started {tasks} tasks on {nodes} nodes; give srun --ntasks-per-node 1")
        host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
        identity = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        return nodes, _own_number(environ, "SLURM_NODEID", "SLURM_STEP_NUM_NODES"), host, identity
    for size, rank, local, job in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "PMI_ID_OF_JOB"),
    ):
        if (nodes := number_in(environ, size, 1)) > 1:
            on_one_machine = environ.get(local) == environ[size]
            number = _own_number(environ, rank, size)
            return nodes, number, "127.0.0.1" if on_one_machine else None, environ.get(job, "")
    return None, None, None, None


def _own_number(environ: Mapping[str, str], name: str, size: str) -> int:
    """Return the number of this node; `ValueError` if the launcher that has set *size* has not set *name*."""
    if not environ.get(name):
        said = f"{size} is {environ[size]}, but {name} is not set"
        raise ValueError(f"{said}; unset {size}, or start each node by srun or mpirun")
    return number_in(environ, name, 0)


def _number(identity: str, key: bytes) -> int:
    """Return a number that all nodes of the job have in common. See Note [The key and the port]."""
    if identity:
        return zlib.crc32(identity.encode())
    return int.from_bytes(hmac.digest(key, b"mp-spawn port", "sha256")[:8], "big")


def _key(path: str | None, environ: Mapping[str, str]) -> bytes:
    if path is not None:
        try:
            with open(path, "rb") as file:
                mode, key = os.fstat(file.fileno()).st_mode, file.read()
        except OSError as error:
            raise ValueError(f"the key file {path!r} cannot be read: {os.strerror(error.errno or 0)}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"others can read {path!r}, which is to be a secret; chmod 600 it")
    else:
        key = os.fsencode(environ.get(KEY, ""))
    # A newline is none of the key, but may be a byte of one that is no text.
    key = key.strip() if key.isascii() else key
    if not key:
        raise ValueError(HOW_TO_KEY)
    if _bits(key) < KEY_BITS or len(set(key)) < DIFFERENT:
        raise ValueError(
            f"the key has {len(key)} characters and at most {_bits(key):.0f} random bits; give {KEY_BITS} or more, "
            f"such as 32 random hexadecimal digits; {HOW_TO_KEY}"
        )
    return key


def _bits(key: bytes) -> float:
    """
    Return how many random bits a key can have, by its length and the kinds of its characters.

    >>> [round(_bits(key)) for key in (b"0123", b"00ff", b"0xyz", bytes([255] * 5))]
    [13, 16, 24, 40]
    """
    alphabet = 256
    if key.isascii() and key.decode().isprintable():
        digits = set(key.lower())
        alphabet = 10 if digits <= set(b"0123456789") else 16 if digits <= set(b"0123456789abcdef") else 64
    return len(key) * math.log2(alphabet)


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
