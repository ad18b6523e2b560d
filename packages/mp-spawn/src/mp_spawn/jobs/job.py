"""A job: the checked options of one call of the launcher, with which each rank is started, once or again."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import current_process, get_all_start_methods, spawn
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from mp_core.children.death_pipe import DeathPipe
from mp_core.system.descriptor import AboveStandardStreams
from mp_spawn.calls.payload import ForkedPayload, InheritedFd, OwnedFd, Payload
from mp_spawn.output.destinations import Inherit, NoThreadError, Output
from mp_spawn.output.streams import Streams
from mp_spawn.ranks.diagnostics import Stacks
from mp_spawn.ranks.process_group import TO_GROUP
from mp_spawn.ranks.process_handle import PidFd
from mp_spawn.ranks.rank import Rank
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.rank_variables import restart_variables
from mp_spawn.ranks.report_pipe import FileInbox, Inbox, ReportFile
from mp_spawn.ranks.signals import TERM_TO_KILL

OUTPUTS = ("inherit", "prefix", "capture")
# The libraries that would otherwise start a thread per core in every rank.
THREADS = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "NUMBA", "RAYON")

# Descriptors that a start takes at most: for the job, and for each rank, without its stacks; for the rank's output.
FOR_A_JOB, FOR_A_RANK, FOR_OUTPUT = 15, 5, 4
# And that a rank keeps at least.
OF_A_RANK = 2
# So many ranks are started without a look at the limits of the machine, and the system refuses what it does not allow.
FEW_RANKS = 100
# What the start of a rank may lack, and what to do.
LACKS = {
    errno.EMFILE: "this process has no descriptor left; raise the limit (ulimit -n), or start fewer ranks",
    errno.EAGAIN: "no process is left to this user; raise the limit of processes (ulimit -u), or start fewer ranks",
}
# The memory that is a rank's own, at least: of a fork of an interpreter, and of an interpreter.
OF_A_FORK, OF_AN_INTERPRETER = 3 << 20, 8 << 20

Env = Mapping[str, str] | Callable[[int], Mapping[str, str]] | None
#: A rank that has been started.
Started = tuple[BaseProcess, PidFd]


def _death_pipe() -> DeathPipe:
    """Return a death pipe that a rank finds beside its standard streams."""
    with AboveStandardStreams():
        return DeathPipe()


class Launcher(Protocol):
    """A way to start ranks."""

    start_method: str
    #: A process in this one's group in which signals stay pending; 0 if there is none.
    witness: int

    #: Whether a rank that has been started has what it inherits when the next is taken from *specs*.
    one_by_one: bool

    def start(self, job: Job, specs: Iterator[RankSpec], own_fds: Callable[[], set[int]]) -> list[Started]: ...


@dataclasses.dataclass
class Job:
    """One call of the launcher."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    nprocs: int
    launcher: Launcher
    daemon: bool = False
    env: Env = None
    threads_per_rank: int | None = None
    cpus: Sequence[frozenset[int]] | None = None
    output: Output = dataclasses.field(default_factory=Inherit)
    max_restarts: int = 0
    wants_result: bool = False
    own_group: bool = False
    faulthandler: bool = True
    #: Whether each rank is a program: see Note [A rank is the program].
    is_program: bool = False
    #: Whether a failed rank that may be started again has all ranks started again.
    restarts_all: bool = False
    #: Whether rank 0 reads the standard input of this process.
    gives_stdin: bool = False
    #: Whether rank 0 reads from the terminal, and so is in the process group of this process.
    gives_terminal: bool = False
    #: The descriptors that each rank inherits from whoever has started this process.
    passed_on: frozenset[int] = frozenset()
    #: The signals that go to all processes of a rank's own group.
    to_group: frozenset[int] = TO_GROUP
    #: Seconds from SIGTERM to SIGKILL.
    time_to_end: float = TERM_TO_KILL
    #: That of the ranks' random numbers.
    seed: Any = None
    #: How often the ranks have been started by jobs before this one.
    restarts_before: int = 0
    #: Whether the descriptors of this process are few, so that ranks take as few as those of multiprocessing.
    frugal: bool = False
    #: Called between two starts; it raises to stop them.
    between_starts: Callable[[], None] = lambda: None
    death_pipe: DeathPipe = dataclasses.field(default_factory=_death_pipe)

    def __post_init__(self) -> None:
        if self.frugal and self.launcher.start_method != "fork":
            # The pipe with which multiprocessing starts a process takes its place. A fork may have those of others.
            self.death_pipe.close()

    def start(self, ranks: Mapping[int, int]) -> list[Rank]:
        """Start *ranks*, which maps the number of a rank to how often it has been started before."""
        if self.launcher.start_method == "fork":  # it would inherit what this holds
            return self._start(ranks)
        with AboveStandardStreams():
            return self._start(ranks)

    def _start(self, ranks: Mapping[int, int]) -> list[Rank]:
        payloads = self.payloads(len(ranks))
        inboxes: list[Inbox] = []
        stacks: list[Stacks | None] = []
        for_ranks: list[OwnedFd] = []

        def own_fds() -> set[int]:
            return {*(each.fd for each in (*inboxes, *filter(None, stacks))), *self.output.own_fds()}

        def specs() -> Iterator[RankSpec]:
            # One file for all, if descriptors are scarce.
            file = ReportFile() if self.frugal else None
            has_stacks = self.faulthandler and not are_descriptors_few(len(ranks), self.output, FOR_A_RANK + 1)
            for (rank, restarts), payload in zip(ranks.items(), payloads, strict=True):
                if self.launcher.one_by_one:
                    # The rank before this one has started, and has what it inherits.
                    close(for_ranks)
                    self.output.close_ends()
                    self.between_starts()
                # An owner first, then the descriptor: a signal handler that raises may run between the two.
                if file is None:
                    inboxes.append(Inbox())
                    for_ranks.append(OwnedFd())
                    inboxes[-1].fd, for_ranks[-1].fd = os.pipe()
                    inboxes[-1].get_ready()
                    report, at, parents_fd = InheritedFd(for_ranks[-1].fd), None, inboxes[-1].fd
                else:
                    inbox = FileInbox(file, len(inboxes))
                    inboxes.append(inbox)
                    report, at, parents_fd = file, inbox.at, file.fd
                stacks.append(Stacks.unless_scarce() if has_stacks else None)
                spec = self.spec(rank, restarts, payload, report, stacks[-1])
                spec = spec._replace(report_at=at, parents_end=f"/proc/{os.getpid()}/fd/{parents_fd}")
                if rank == 0 and self.gives_stdin:
                    for_ranks.append(OwnedFd())
                    for_ranks[-1].fd = os.dup(0)
                    spec = spec._replace(stdin=InheritedFd(for_ranks[-1].fd))
                yield spec

        try:
            # Not at the top: `import mp_spawn` does not import mp-core.
            from mp_core.system.oom_kills import oom_kills

            kills = oom_kills()
            started = self.launcher.start(self, specs(), own_fds)
        except BaseException as error:
            for inbox in inboxes:
                inbox.close()
            for file in filter(None, stacks):
                file.close()
            with contextlib.suppress(NoThreadError):  # for what ranks have written that had started
                self.output.started()
            lack = LACKS.get(getattr(error, "errno", 0) or 0, "")
            if lack and lack not in str(error):
                rank = [*ranks][max(0, len(inboxes) - 1)]
                raise OSError(error.errno, f"rank {rank} cannot be started: {lack}") from error  # type: ignore[attr-defined]
            raise
        finally:
            close(for_ranks)
            for payload in payloads:
                payload.close()
        self.output.started()
        return [
            Rank(rank, process, pidfd, inbox, file, restarts, kills, self.to_group_of(rank), self.is_program)
            for (rank, restarts), (process, pidfd), inbox, file in zip(
                ranks.items(), started, inboxes, stacks, strict=True
            )
        ]

    def has_group(self, rank: int) -> bool:
        """Tell whether a rank leads a group of its own: the system stops one that reads from the terminal."""
        return self.own_group and not (rank == 0 and self.gives_terminal)

    def to_group_of(self, rank: int) -> frozenset[int]:
        """Return the signals that go to all processes of the rank's group."""
        return self.to_group if self.has_group(rank) else frozenset()

    def preparation(self) -> dict[str, Any]:
        """Return multiprocessing's preparation data for a rank: the main module, sys.path, the authkey, …."""
        from mp_core.children.main_module import leave_out

        leave_out()
        try:
            return spawn.get_preparation_data("rank")
        except FileNotFoundError as error:
            what = "the current folder has been removed, and ranks begin in it: cd to another"
            raise FileNotFoundError(errno.ENOENT, what) from error

    def payloads(self, count: int) -> list[Payload]:
        if self.launcher.start_method == "fork":
            return [ForkedPayload(self.fn, self.args)] * count
        # Not at the top: a fork does not need mp-core.
        from mp_core.children.main_module import receivers_may_differ

        receivers_may_differ()
        from mp_spawn.calls.payloads import payloads, plain_payload

        if self.frugal:
            return [plain_payload(self.fn, self.args, self.launcher.start_method)] * count
        return payloads(self.fn, self.args, count, self.launcher.start_method)

    def spec(self, rank: int, restarts: int, payload: Payload, report: InheritedFd, stacks: Stacks | None) -> RankSpec:
        env: dict[str, str] = {}
        if self.threads_per_rank is not None:
            env = dict.fromkeys((f"{name}_NUM_THREADS" for name in THREADS), str(self.threads_per_rank))
        env |= own_variables(self.env, rank)
        env |= restart_variables(env, restarts + self.restarts_before)
        return RankSpec(
            rank,
            payload,
            report,
            InheritedFd(self.death_pipe.fd) if self.death_pipe.fd >= 0 else None,
            output=self.output.ends_for(rank, restarts),
            stacks=InheritedFd(stacks.fd) if stacks else None,
            env=env,
            cpus=self.cpus[rank] if self.cpus else None,
            own_group=self.has_group(rank),
            wants_result=self.wants_result,
            is_program=self.is_program,
            seed=self.seed,
        )


def close(owners: list[OwnedFd]) -> None:
    for each in owners:
        each.close()
    owners.clear()


def are_descriptors_few(nprocs: int, output: Output, for_a_rank: int = FOR_A_RANK) -> bool:
    """Tell whether the start of so many ranks may need more descriptors than are left. Without /proc, say no."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return False
    if not isinstance(output, Inherit):
        for_a_rank += FOR_OUTPUT
    return limit != resource.RLIM_INFINITY and limit - used < FOR_A_JOB + for_a_rank * nprocs


def check_room(nprocs: int, each: int) -> None:
    """Raise `ValueError` for more ranks than this machine can have, if each has so many bytes of its own."""
    if nprocs <= FEW_RANKS:
        return
    import resource

    from mp_core.system.control_groups import control_groups, limit_of

    limits = {
        "ranks, by the limit of descriptors (ulimit -n)": resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OF_A_RANK
    }
    if "SC_PHYS_PAGES" in os.sysconf_names:
        limits["ranks, by its memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // each
    for controller, folder in control_groups():
        for kind, name, size in (("pids", "pids.max", 1), ("memory", "memory.max", each)):
            most = limit_of(folder, name) if controller in ("", kind) else None
            if most is not None:
                limits[f"ranks, by {folder}/{name}"] = most // size
    if os.geteuid() != 0:  # the limit does not apply to root
        limits["processes of a user (ulimit -u)"] = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    what = min((name for name, most in limits.items() if most >= 0), key=limits.__getitem__)  # below 0: unlimited
    if nprocs > limits[what]:
        raise ValueError(f"nprocs={nprocs} is too large; this machine allows at most {limits[what]} {what}")


def own_variables(env: Any, rank: int) -> dict[str, str]:
    """
    Return the variables that *env* says for a rank.

    >>> own_variables(lambda rank: {"A": rank}, 1)
    Traceback (most recent call last):
    TypeError: env has 'A': 1; the name and the value of a variable are of type str
    """
    given = env(rank) if callable(env) else {} if env is None else env
    if not isinstance(given, Mapping):
        raise TypeError(f"env is {_short(given)}; give a mapping, or a function of the rank that returns one")
    for name, value in given.items():
        has = f"env has {name!r}: {_short(value)}; "
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"{has}the name and the value of a variable are of type str")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{has}a name is not empty and has no '=', and neither has a null character")
    return dict(given)


def checked_args(fn: Any, args: Any, nprocs: Any) -> tuple[Any, ...]:
    """
    Return *args* as a tuple if ``fn(rank, *args)`` can be called in *nprocs* ranks.

    Otherwise raise `TypeError`, `ValueError` or `RuntimeError`.

    >>> checked_args(print, [1], 2)
    (1,)
    >>> checked_args(print, 1, 2)
    Traceback (most recent call last):
    TypeError: args is a int, 1; it must be a tuple or a list, as in args=(x,)
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}, which cannot be called; give a function of (rank, *args)")
    if current_process().daemon:
        raise RuntimeError("this is a daemonic process, which cannot have children; start it with daemon=False")
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args is a {type(args).__name__}, {_short(args)}; it must be a tuple or a list, as in args=(x,)"
        )
    at_least("nprocs", nprocs, 1, "the number of ranks")
    return tuple(args)


def check_start_method(start_method: Any, context: Any) -> None:
    """Raise `ValueError` for an unknown start method, `TypeError` if *context* is no context."""
    if context is not None:
        if not isinstance(context, BaseContext):
            raise TypeError(f"context is {context!r}; give multiprocessing.get_context(...), or None")
    elif start_method not in get_all_start_methods():
        known = ", ".join(map(repr, get_all_start_methods()))
        raise ValueError(f"start_method={start_method!r} is unknown here; give one of {known}")


def check_options(threads_per_rank: Any, max_restarts: Any, output: Any) -> None:
    """Raise `TypeError` or `ValueError` for an option out of its range."""
    if threads_per_rank is not None:
        at_least("threads_per_rank", threads_per_rank, 1, "the threads of each rank, or None to leave them")
    at_least("max_restarts", max_restarts, 0, "how often a rank may be started again")
    if isinstance(output, Streams):
        return
    is_word = isinstance(output, str) and os.sep not in output and not os.path.isdir(output)
    if (is_word and output not in OUTPUTS) or not isinstance(output, str | os.PathLike):
        known = ", ".join(map(repr, OUTPUTS))
        raise ValueError(f"output={output!r} is none of {known}, nor a folder; write a new one as './{output}'")


def at_least(name: str, value: Any, least: int, what: str) -> None:
    """Raise `TypeError` or `ValueError` for an option that is no integer, or too small; *what* says what to give."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give an integer, {what}") from None
    if number < least:
        raise ValueError(f"{name}={number} is too small; give {least} or more, {what}")


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else text[:57] + "..."
