"""The command line of `mp-spawn`: its one table of options, which has torchrun's among them.

Note [Torchrun's lines]
-----------------------
A launch line of torchrun means the same here. `-n` counts the ranks of a job; without it, torchrun's `--nproc-per-node`
counts those of a node, and a failed rank has all ranks started again. Options of torchrun that are not supported are in
`REFUSED`, each with the reason, so that none is taken for something else.

Names may have underscores instead of dashes. `PET_` and the name of an option of torchrun is a variable with its value,
which the line overrides.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing import get_all_start_methods
from typing import Any, NoReturn

from mp_spawn.command.completion import SHELLS, completion
from mp_spawn.command.rendezvous import BACKENDS, Nodes, conf_of, endpoint_of, nodes_of, port_of
from mp_spawn.command.seconds import seconds
from mp_spawn.output.streams import is_selection
from mp_spawn.ranks.rank_variables import INSIDE
from mp_spawn.ranks.signals import AFTER_A_SIGNAL

EPILOG = """
The environment of each rank has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the other variables of torchrun, and
MASTER_ADDR and MASTER_PORT, by default 127.0.0.1 and a free port. When a rank fails, the command ends the others. Its
exit code is that of the first failure: the rank's own, 1 for an exception, 128 + n for signal n. After --timeout it
is 124. On one machine rank 0 reads the standard input of the command; a terminal only with one rank or --stdin 0.
"""
SEVERAL_NODES = """
With Slurm or mpirun, start one mp-spawn on each node. By hand, do so with the same --nnodes, --master-addr and
--master-port, and with a --node-rank of its own, or with --rdzv-backend c10d. -n is the number of ranks on all nodes
together. The nodes need mp-nodes, and a common secret, in MP_SPAWN_KEY or in --key-file.
"""
TORCHRUNS_WORDS = "as torchrun has it; no effect here"

# Options of torchrun, and the words to the user.
REFUSED = {
    "--duplicate-stderr-filters": "filter the files of --log-dir instead",
    "--duplicate-stdout-filters": "filter the files of --log-dir instead",
    "--event-log-handler": "leave it out: failures are reported on standard error, and records go through logging",
    "--local-addr": "leave it out: node 0 sees the address of each node; --master-addr is that of node 0",
    "--log-line-prefix-template": "leave it out: each line has its rank in front, or give --output inherit",
    "--logs-specs": "give --log-dir, --redirects and --tee",
    "--numa-binding": "give --bind spread, or --bind with a set of processors for each rank",
    "--signals-to-handle": "leave it out: every signal is forwarded to the ranks",
    "--use-env": "leave it out: the ranks always find LOCAL_RANK in their environment",
    "--virtual-local-rank": "give --gpus-per-rank 1, with which each rank sees one device",
}


class _Refuse(argparse.Action):
    """The end of the command for an option that it does not have."""

    def __call__(self, parser: Any, chosen: Any, values: Any, option: str | None = None) -> None:
        assert option is not None
        raise ValueError(f"{option} is an option of torchrun that mp-spawn does not have; {REFUSED[option]}")


class _Version(argparse.Action):
    """The end of the command with its version."""

    def __call__(self, parser: Any, *_: Any) -> None:
        from mp_core import __version__

        print(f"mp-spawn {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    """The end of the command with a line by which a shell completes its options."""

    def __call__(self, parser: Any, chosen: Any, shell: Any, option: str | None = None) -> None:
        names = [name for action in parser._actions for name in action.option_strings if name not in REFUSED]
        print(completion("mp-spawn", names, shell))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """A parser that knows what a misspelt option means."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, with the option that is nearest to an unknown one, and end the command."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        known = [name for action in self._actions for name in action.option_strings if name not in REFUSED]
        near = difflib.get_close_matches(unknown[0], known, 1) if unknown else []
        super().error(f"{message}; did you mean {near[0]}?" if near else message)


class _Table:
    """Adds options to a group; torchrun's have a variable each."""

    def __init__(self, group: argparse._ActionsContainer, environ: Mapping[str, str]) -> None:
        self._group = group
        self._environ = environ

    def ours(self, *names: str, **details: Any) -> None:
        self._group.add_argument(*names, **details)

    def torchruns(self, *names: str, **details: Any) -> None:
        """Add an option that torchrun has as well."""
        action = self._group.add_argument(*names, **details)
        variable = "PET_" + action.dest.upper()
        # A command that a rank starts is no part of the job for which the variables are.
        if variable in self._environ and INSIDE not in self._environ:
            text = self._environ[variable]
            action.default = _switch(variable, text) if action.nargs == 0 else text


def _switch(variable: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise ValueError(f"{variable}={text} is no switch; give 1 or 0")
    return text == "1"


def parser(environ: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    parser = _Parser(prog="mp-spawn", description="Run a Python script or module in N processes.", epilog=EPILOG)

    def group(title: str, text: str | None = None) -> _Table:
        return _Table(parser.add_argument_group(title, text), environ)

    number = _Table(parser.add_mutually_exclusive_group(), environ)
    number.ours("-n", "--nprocs", metavar="N", help="number of ranks (default 1); auto: one for each processor")
    number.torchruns(
        "--nproc-per-node",
        metavar="N",
        help="number of ranks on each node; cpu: one for each processor; gpu: for each device; auto: gpu, or else cpu",
    )
    program = _Table(parser, environ)
    program.torchruns(
        "--start-method", default="spawn", choices=get_all_start_methods(), help="no effect: a rank is the program"
    )
    program.torchruns("-m", "--module", action="store_true", help="run a module, as python -m does")
    program.ours("-c", dest="code", action="store_true", help="run code, as python -c does")
    program.torchruns("--no-python", action="store_true", help="run a program of any kind instead of a Python script")
    program.torchruns("--run-path", action="store_true", help="run a script: the default")

    failures = group("failures")
    failures.torchruns(
        "--max-restarts", type=int, default=0, metavar="R", help="start again up to R times after a failure"
    )
    failures.ours(
        "--restart",
        choices=("rank", "all"),
        help="what is started again: the failed rank (the default with -n), or all ranks (the default without)",
    )
    failures.ours(
        "--no-faulthandler",
        dest="faulthandler",
        action="store_false",
        help="do not record the Python stacks of a rank that crashes",
    )
    failures.ours(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="end ranks that still run then, with their Python stacks and the exit code 124",
    )
    failures.torchruns(
        "--shutdown-timeout",
        "--grace-period",
        type=seconds,
        default=AFTER_A_SIGNAL,
        metavar="SECONDS",
        help="time to save a checkpoint, from SIGTERM (or another signal that ends the command) to SIGKILL, for ranks "
        "that still run when one has ended by it or has failed (default 30)",
    )
    failures.torchruns("--monitor-interval", type=float, metavar="SECONDS", help=TORCHRUNS_WORDS)

    ranks = group("processors, devices and environment")
    ranks.ours("--threads-per-rank", type=int, metavar="K", help="set OMP_NUM_THREADS and the like")
    ranks.ours(
        "--bind",
        "--cpu-affinity",
        metavar="WHERE",
        help="spread: the ranks over the processors of this process; or a set for each rank, as in 0-3:4-7",
    )
    ranks.ours(
        "--gpus-per-rank", type=int, metavar="K", help="set CUDA_VISIBLE_DEVICES to the next K devices for each rank"
    )
    ranks.ours(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a variable for every rank; may be repeated",
    )
    ranks.torchruns("--role", default="default", metavar="NAME", help="ROLE_NAME of the ranks")

    output = group("input and output")
    output.ours(
        "--output",
        help="prefix: the rank before each line (the default); inherit; "
        "capture: rank after rank, at the end; or a folder, for a file per rank and stream",
    )
    output.torchruns("--log-dir", metavar="FOLDER", help="a file per rank and stream there; as --output ./FOLDER")
    output.torchruns(
        "-r",
        "--redirects",
        metavar="STREAMS",
        help="to files only: 1, standard output; 2, standard error; 3, both; or for some ranks, as in 0:1,1:3",
    )
    output.torchruns(
        "-t",
        "--tee",
        nargs="?",
        const=BOTH,
        metavar="STREAMS",
        help="to files, and printed with the rank in front; both streams, if none is named",
    )
    output.torchruns("--local-ranks-filter", metavar="RANKS", help="print the output of these ranks of a node only")

    output.ours(
        "--stdin",
        choices=("0",),
        metavar="0",
        help="let rank 0 read from the terminal, as the rank of -n 1 does anyway",
    )
    output.ours(
        "--timeline",
        metavar="PATH",
        help="record what the ranks of this machine do, and write a report: .html for a browser, .json for Perfetto",
    )

    nodes = group("several nodes", SEVERAL_NODES)
    nodes.ours("--engine", choices=("ray", "local"), help="run the ranks on a Ray cluster; or try nodes here")
    nodes.torchruns(
        "--nnodes", type=nodes_of, metavar="M", help="number of nodes; 1 to stay on this one; or MIN:MAX of them"
    )
    nodes.torchruns("--node-rank", type=int, metavar="I", help="number of this node, from 0")
    nodes.torchruns("--master-addr", metavar="HOST", help="address on which node 0 listens")
    nodes.torchruns("--master-port", type=port_of, metavar="PORT", help="port on which node 0 listens (29500 by hand)")
    nodes.ours("--key-file", metavar="FILE", help="file with the secret, which only you can read")
    nodes.torchruns("--standalone", action="store_true", help="one node, whatever Slurm, MPI or the environment say")
    nodes.torchruns(
        "--rdzv-backend",
        default="static",
        metavar="|".join(BACKENDS),
        help="c10d: the nodes are numbered as they come, and the one that has the endpoint's address is node 0",
    )
    nodes.torchruns(
        "--rdzv-endpoint", type=endpoint_of, metavar="HOST:PORT", help="instead of --master-addr and --master-port"
    )
    nodes.torchruns("--rdzv-id", metavar="NAME", help="name of the job, the same for all nodes")
    nodes.torchruns(
        "--rdzv-conf",
        type=conf_of,
        metavar="NAME=VALUE,...",
        help="join_timeout: seconds until all nodes must have come; last_call_timeout: for those between MIN and MAX",
    )
    for name in REFUSED:
        parser.add_argument(name, nargs="?", action=_Refuse, help=argparse.SUPPRESS)
    parser.add_argument("script", help="the script, or with -m the module, or with -c the code")
    parser.add_argument("arguments", nargs="*", default=[], help="arguments of the script")
    parser.add_argument("--version", nargs=0, action=_Version, help="show the version")
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=_Completion, help="print what completes the options in a shell"
    )
    return parser


# The value of an option without one.
BOTH = "3"


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """
    Parse a command line.

    >>> parsed(["--nproc_per_node", "2", "--tee", "train.py", "--a_b"]).arguments
    ['--a_b']
    """
    names = _with_dashes(arguments)
    options = parser()
    # What follows the script is the script's. argparse would look for abbreviations of our options there.
    end = _script_at(names, options) + 1
    chosen = options.parse_args(names[:end])
    chosen.arguments = list(arguments[end:])
    return chosen


def _script_at(names: Sequence[str], options: argparse.ArgumentParser) -> int:
    """Return the place of the script in the line: the first token that is neither an option nor the value of one."""
    takes_value = {name: action.nargs in (None, "?") for action in options._actions for name in action.option_strings}
    at = 0
    while at < len(names):
        token = names[at]
        if token == "--":
            return at + 1
        if not token.startswith("-") or token == "-":
            return at
        found = [name for name in takes_value if name == token] or [
            name for name in takes_value if name.startswith(token) and token.startswith("--")
        ]
        # One letter may have its value in the same token; an unknown option is refused by argparse.
        at += 2 if found and takes_value[found[0]] else 1
    return at


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """
    Return the line with dashes in the names of options, and with a value for each --tee; as many tokens as before.
    """
    names = []
    for token, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = token.partition("=")
        if token.startswith("--"):
            token = name.replace("_", "-") + equals + value
        # Otherwise the script would be taken for the value.
        names.append(f"{token}={BOTH}" if token in ("-t", "--tee") and not is_selection(following) else token)
    return names


def check(chosen: argparse.Namespace) -> None:
    """Give options that stand for others their effect, and raise `ValueError` for those that exclude each other."""
    kinds = {
        "--run-path": chosen.run_path,
        "-m": chosen.module,
        "-c": chosen.code,
        "--no-python": chosen.no_python,
    }
    if len(given := [name for name, is_given in kinds.items() if is_given]) > 1:
        raise ValueError(f"{' and '.join(given)} ask for programs of different kinds; give one of them")
    is_filed_only = chosen.log_dir is not None and chosen.tee is chosen.redirects is chosen.local_ranks_filter is None
    if chosen.output == "prefix" and is_filed_only:
        raise ValueError("--output prefix and --log-dir exclude each other; give --log-dir with --tee for both")
    chosen.output = chosen.output or "prefix"
    if chosen.rdzv_backend not in BACKENDS:
        raise ValueError(f"--rdzv-backend {chosen.rdzv_backend} is not supported; give {' or '.join(BACKENDS)}")
    if chosen.standalone:
        if chosen.nnodes is not None and chosen.nnodes.least > 1:
            raise ValueError(
                f"--standalone is for one node, and --nnodes asks for {chosen.nnodes.least}; leave one out"
            )
        # As torchrun does: those of several nodes are not looked at.
        chosen.nnodes, chosen.rdzv_endpoint, chosen.rdzv_id = Nodes(1, 1), None, str(uuid.uuid4())
    if chosen.rdzv_endpoint is not None:
        host, port = chosen.rdzv_endpoint
        chosen.master_addr = chosen.master_addr or host
        chosen.master_port = chosen.master_port or port
