"""A node's ranks under the launcher, as the agent runs them: the job, its commands and its output."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import spawn
from typing import Any, Self

from mp_core.children.cpu_affinity import cpus_for
from mp_core.system.descriptor import readable
from mp_nodes.agent.node_payload import NodePayload
from mp_nodes.protocol import End, Ended, Failing, Printed, Restarted, Row, Show, Shown, Signal, Start
from mp_spawn.calls.payload import Payload
from mp_spawn.errors import Failure
from mp_spawn.jobs.job import Job, Launcher
from mp_spawn.jobs.supervisor import Supervisor
from mp_spawn.output.destinations import Piped
from mp_spawn.ranks.rank import Events, Rank, all_ended, stacks_of
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.report_pipe import Kind

# Bytes of output that may be on their way to the driver.
UNACKNOWLEDGED = 8 << 20


class EndAsked(Exception):
    """The driver has asked for the end of the ranks."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


class Commands:
    """
    The driver's commands for the thread that waits for the ranks: in the place of `Forwarding`, whose signals wake it.

    The first `End` is raised as `EndAsked` while the thread waits. A later one hurries the first.
    """

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        self._commands: deque[Any] = deque()
        self._lock = threading.Lock()
        self._ending = False
        #: Answers `Show`.
        self.show: Callable[[], None] = lambda: None

    def push(self, command: Signal | End | Show) -> None:
        """Wake the thread with a command; without effect after `close`."""
        with self._lock:
            if self._write >= 0:
                self._commands.append(command)
                os.write(self._write, b"!")

    def handle(self, forward: Callable[[int], None]) -> None:
        """Handle the commands that have come."""
        os.read(self.fd, 1)
        command = self._commands.popleft()
        if isinstance(command, Signal):
            forward(command.signum)
        elif isinstance(command, Show):
            self.show()
        elif not self._ending or command.grace_period < 0:
            self._ending = True
            raise EndAsked(command)

    def close(self) -> None:
        """Close the pipe. Idempotent."""
        with self._lock:
            ends, (self.fd, self._write) = (self.fd, self._write), (-1, -1)
            for fd in ends:
                if fd >= 0:
                    os.close(fd)


class Relay(Piped):
    """The output of the ranks, read here and sent to the driver, which acknowledges it."""

    def __init__(self, tell: Callable[[Any], None], first: int) -> None:
        super().__init__()
        self._tell = tell
        self._first = first
        self._credit = UNACKNOWLEDGED
        self._acknowledged = threading.Condition()

    def acknowledge(self, nbytes: int) -> None:
        """Let so many bytes more be sent."""
        with self._acknowledged:
            self._credit += nbytes
            self._acknowledged.notify_all()

    def take(self, rank: int, stream: str, data: bytes) -> None:
        with self._acknowledged:
            self._acknowledged.wait_for(lambda: self._credit > 0)
            self._credit -= len(data)
        self._tell(Printed(self._first + rank, stream, data))

    def closed(self, rank: int, stream: str) -> None:
        self._tell(Printed(self._first + rank, stream, b""))


@dataclasses.dataclass
class NodeJob(Job):
    """The job of one node: ranks with numbers of the whole job, and a call that has come from another machine."""

    start_message: Start | None = None
    payload: NodePayload | None = None

    @classmethod
    def of(cls, start: Start, payload: NodePayload, launcher: Launcher, output: Relay) -> Self:
        count = len(start.node.ranks)
        return cls(
            fn=cls.of,
            args=(),
            nprocs=count,
            launcher=launcher,
            daemon=start.daemon,
            env=lambda rank: {**_devices(rank, start.gpus_per_rank), **start.env[rank]},
            threads_per_rank=start.threads_per_rank,
            cpus=cpus_for("spread" if start.spread else None, count, "ranks"),
            output=output,
            restarts_before=start.restarts,
            max_restarts=start.max_restarts,
            wants_result=start.wants_result,
            own_group=start.own_group,
            is_program=start.is_program,
            time_to_end=start.time_to_end,
            faulthandler=start.faulthandler,
            seed=start.seed,
            start_message=start,
            payload=payload,
        )

    def send(self, rank: int, data: bytes) -> None:
        """Send a message to the mailbox of a rank."""
        assert self.start_message is not None and self.payload is not None
        self.payload.post_office.send(rank - self.start_message.node.ranks.start, data)

    def preparation(self) -> dict[str, Any]:
        """Return multiprocessing's preparation data: the driver's, as far as this machine has its files."""
        assert self.start_message is not None
        main = self.start_message.main
        data = {key: value for key, value in spawn.get_preparation_data("rank").items() if "main" not in key}
        data |= {key: main[key] for key in ("sys_argv", "init_main_from_name") if key in main}
        if os.path.isdir(main["dir"]):
            data |= {"dir": main["dir"], "orig_dir": main["dir"]}
        own = data["sys_path"]
        data["sys_path"] = [path for path in main["sys_path"] if path not in own and os.path.exists(path)] + own
        path = main.get("init_main_from_path")
        if path is not None and os.path.exists(path):
            data["init_main_from_path"] = path
        elif path is not None and b"__main__" in self.start_message.shipment.call:
            raise FileNotFoundError(
                f"the program {path!r}, which defines the function for the ranks, is not on this machine; put it "
                "there, or the function into a module that is"
            )
        return data

    def payloads(self, count: int) -> list[Payload]:
        assert self.payload is not None
        return self.payload.payloads(count)

    def spec(self, rank: int, *details: Any) -> RankSpec:
        assert self.start_message is not None
        number = self.start_message.node.ranks[rank]
        return super().spec(rank, *details)._replace(rank=number, by_value=True)


def _devices(rank: int, each: float) -> dict[str, str]:
    """Return the variable with the devices of a rank, out of those that the engine has given to the agent."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not each or not given:
        return {}
    first = int(rank * each + 1e-6)
    return {"CUDA_VISIBLE_DEVICES": ",".join(given.split(",")[first : first + max(1, int(each))])}


class NodeSupervisor(Supervisor):
    """The ranks of a node, which end when the driver says so, or by themselves."""

    def __init__(self, ranks: list[Rank], job: NodeJob, commands: Commands) -> None:
        super().__init__(ranks, job, commands)
        self._node_job = job
        #: Sends a message to the driver.
        self.tell: Callable[[Any], None] = lambda message: None
        # The pickled exceptions, by index of the rank on this node.
        self._blobs: dict[int, bytes] = {}
        commands.show = self._show

    def run(self) -> Ended:
        """Wait for the end of the ranks, or for the driver to end them, and return how each ended."""
        try:
            self.wait(None)
            if not all_ended(self.ranks):
                self.tell(Failing())
            while not all_ended(self.ranks):
                self.pass_time(60.0)
        except EndAsked as asked:
            try:
                self.was_told_to_end = asked.end.were_told
                self.end(asked.end.grace_period, asked.end.casualties)
            except EndAsked:
                pass  # the second one; end() has killed the ranks
        self.finish()
        return self._outcome()

    def _outcome(self) -> Ended:
        first = self._node_job.start_message.node.ranks.start  # type: ignore[union-attr]
        failures = []
        results = {}
        for rank in self.ranks:
            failure = self.failure(rank)
            number = first + rank.index
            if failure is not None:
                failures.append((self._numbered(failure), self._blobs.get(rank.index, b"")))
            elif rank.report is not None and rank.report.kind is Kind.RETURNED:
                results[number] = rank.report.blob
        rows = [Row(first + rank.index, rank.pid, rank.process.exitcode, rank.seconds) for rank in self.ranks]
        return Ended(failures, [self._numbered(failure) for failure in self.past], results, rows)

    def _show(self) -> None:
        node = self._node_job.start_message.node  # type: ignore[union-attr]
        self.tell(Shown(stacks_of(self.ranks, node.ranks.start, f", node {node}")))

    def _numbered(self, failure: Failure) -> Failure:
        start = self._node_job.start_message
        assert start is not None
        return dataclasses.replace(failure, rank=start.node.ranks[failure.rank], exception=None, node=str(start.node))

    def failure(self, rank: Rank) -> Failure | None:
        """Return the failure of a rank without its exception, which is kept as a pickle."""
        # The exception is for the driver to unpickle, which has the modules for it.
        if blob := rank.take_exception():
            self._blobs[rank.index] = blob
        return super().failure(rank)

    def restart(self, failed: list[tuple[Rank, Failure]], job: Job) -> None:
        """Start ranks again, and tell the driver."""
        super().restart(failed, job)
        for old, failure in failed:
            self._blobs.pop(old.index, None)
            self.tell(Restarted(self._numbered(failure), self.ranks[old.index].pid))

    def events(self) -> Events:
        """Return what `wait` waits for: the ranks, and the commands of the driver."""
        # This is not the main thread: the commands are no signals of this process.
        return Events(self.ranks, self.sentinels, self.signals, self.forward)

    def hears_an_end(self) -> bool:
        """Handle the commands of the driver that have come; tell whether the ranks are to end."""
        commands = self.signals
        if not self.was_told_to_end and commands.fd >= 0 and readable(commands.fd, 0):
            try:
                commands.handle(self.forward)
            except EndAsked:
                self.was_told_to_end = True
        return self.was_told_to_end
