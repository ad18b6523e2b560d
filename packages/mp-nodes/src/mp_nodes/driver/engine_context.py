"""`EngineContext`: the ranks of one job on the nodes of an engine, from their start to the exception for their end."""

from __future__ import annotations

import dataclasses
import errno
import logging
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from mp_nodes import protocol
from mp_nodes.driver.completion import Completion
from mp_nodes.driver.node_state import TO_GREET, NodeState
from mp_nodes.driver.plan import Plan
from mp_nodes.driver.remote_output import Writer, sink_for
from mp_nodes.protocol import BEAT, NODE_LOST_AFTER, EngineError, Node
from mp_spawn.errors import Failure, ProcessException, exception_of
from mp_spawn.jobs.running_job import RunningJob
from mp_spawn.jobs.supervisor import GRACE, KILL_TO_DEAD, Patience
from mp_spawn.jobs.time_limits import checked_seconds
from mp_spawn.output.destinations import Captured, Piped
from mp_spawn.ranks.rank import FOR_STACKS, unpickled
from mp_spawn.ranks.signals import AFTER_A_SIGNAL, ENDING, INTERRUPTED, TERM_TO_KILL, Deferral, Ended

# Seconds for an agent that was told to end its ranks to say how they ended, beyond those that the ranks have.
TO_END = KILL_TO_DEAD + NODE_LOST_AFTER
# A scheduler that signals each node does so within as many seconds: it is one signal.
TO_ALL_NODES = 2.0

logger = logging.getLogger("mp_spawn")


class EngineContext(RunningJob):
    """
    The ranks of a job on an engine, as `start_processes` returns them with ``join=False`` and ``engine=``.

    It has the methods of `RunningJob`. The processes are not this program's children, so ``processes`` and
    ``sentinels``, which programs for torch read, are empty. After the first failure the other ranks are ended, whether
    or not `join` is being called.

    Parameters
    ----------
    plan : Plan
        The checked options; `start_processes` makes it.
    wants_result : bool
        Whether the ranks send their results.
    grace_period : float
        As for `join`.
    look : callable, optional
        Called during the wait for the agents, twice a second. An exception that it raises ends the wait.

    Attributes
    ----------
    nodes : list of Node
        The name, address and ranks of each node.
    rows : list
        How each rank has ended, once all have.

    Examples
    --------
    >>> two = mp.engines.Local(nodes=2)
    >>> with mp.start_processes(print, nprocs=4, join=False, output="capture", engine=two) as context:
    ...     [node.ranks for node in context.nodes]
    [range(0, 2), range(2, 4)]
    """

    def __init__(
        self,
        plan: Plan,
        wants_result: bool = False,
        grace_period: float | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self.processes: list[BaseProcess] = []
        self.sentinels: dict[int, int] = {}
        self._plan = plan
        self._to_end = plan.time_to_end + TO_END
        self._wants_result = wants_result
        self._grace_period = GRACE if grace_period is None else grace_period
        self._failures: list[Failure] = []
        self._past: list[Failure] = []
        self._results: dict[int, bytes] = {}
        self.rows: list[protocol.Row] = []
        self._refusal: BaseException | None = None
        self._error: ProcessException | None = None
        # When the ranks of all nodes are to be ended, and how; when they must have ended.
        self._end_at: float | None = None
        self._give_up_at: float | None = None
        # Commands of other threads, which only append.
        self._asked: deque[protocol.End | protocol.Signal | protocol.Show] = deque()
        # By signal: when a node was last sent it, and how often each was lately.
        self._heard: dict[int, tuple[float, Counter[int]]] = {}
        # How often all ranks have been started again; whether they were told to end: they are not started again then,
        # and by a signal, after which they are sent no SIGTERM in addition.
        self._attempt = 0
        self._is_to_end = False
        self._patience = Patience(min(plan.time_to_end, TERM_TO_KILL))
        #: The signal that has ended the ranks, if one has.
        self.told_by = 0
        #: The exit code of the job, if that is not for its ranks to say.
        self.exit_code: int | None = None
        self._given_up = threading.Event()
        self._done = Completion()
        self._agents = plan.engine.place(plan.nprocs)
        try:
            self.nodes = self._lay_out(self._agents)
            plan = self._plan
            self._states = [NodeState(node) for node in self.nodes]
            self._greet(look)
            sink = sink_for(plan.output, self.nodes)
            self._master = self._address()
            starts = {
                index: plan.start(index, node, self._master, wants_result) for index, node in enumerate(self.nodes)
            }
        except BaseException:
            self._agents.close(1)
            raise
        self._writer = Writer(sink, lambda node, nbytes: self._agents.send(node, protocol.Ack(nbytes)))
        self._thread = threading.Thread(target=self._drive, name="mp-spawn engine", daemon=True)
        self._thread.start()
        try:
            # While the thread sends heartbeats: large arrays take their time.
            self._agents.start(starts, plan.parts)
        except BaseException:
            self._given_up.set()
            self._done.wait()
            raise

    # ---- what the program calls --------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return the pids, by rank, each on its own node; 0 for a rank that has not started yet."""
        return [pid for state in self._states for pid in state.pids]

    @property
    def output(self) -> Piped:
        """Where the output of the ranks goes."""
        return self._writer.sink

    @property
    def captured(self) -> list[Captured]:
        """The output of each rank so far, under ``output="capture"``."""
        sink = self._writer.sink
        ranks = range(self._plan.nprocs)
        return [Captured(sink.text(rank, "stdout"), sink.text(rank, "stderr")) for rank in ranks]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks, as `ProcessContext.join` does."""
        timeout, grace_period = checked_seconds("timeout", timeout), checked_seconds("grace_period", grace_period)
        if grace_period is not None:
            self._grace_period = grace_period
        try:
            if not self._wait(timeout):
                return False
        except Ended:
            raise
        except BaseException:
            # Ctrl-C. No terminal sends it to other machines.
            self._interrupt()
            raise
        if self._refusal is not None:
            raise self._refusal
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the ranks. A signal that would end this process at once is for them first, as on one machine."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.is_over():
            return True
        try:
            with Deferral() as signals:
                if signals.fd >= 0:
                    return self._wait_beside(signals, deadline)
        except OSError as lack:
            if lack.errno not in (errno.EMFILE, errno.ENFILE):
                raise  # without a descriptor for it, the signal ends this process at once
        return self._done.wait(None if deadline is None else deadline - time.monotonic())

    def _wait_beside(self, signals: Deferral, deadline: float | None) -> bool:
        ended: Ended | None = None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._done.wait_beside(signals.fd, left):
                try:
                    signals.handle(self.send_signal)
                except Ended as came:
                    if ended is not None:
                        self.terminate(-1.0)  # a second one: at once
                        raise
                    ended, deadline = came, None
                    self.send_signal(came.signum)
                    self._ask(protocol.End(AFTER_A_SIGNAL, False, True))
                    continue
                if left != 0.0:
                    continue
            if ended is not None:
                raise ended
            return self.is_over()

    async def ajoin(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks in a coroutine, as `ProcessContext.ajoin` does."""
        timeout, grace_period = checked_seconds("timeout", timeout), checked_seconds("grace_period", grace_period)
        if grace_period is not None:
            self._grace_period = grace_period
        return await self._done.wait_in_loop(timeout) and self.join()

    def terminate(self, grace_period: float = 0.0) -> None:
        """End the ranks of all nodes, as `ProcessContext.terminate` does."""
        grace_period = checked_seconds("grace_period", grace_period)
        self._is_to_end = True
        self._ask(protocol.End(grace_period, False, bool(self.told_by)))
        self._done.wait(grace_period + self._to_end + NODE_LOST_AFTER)

    def _interrupt(self) -> None:
        self._ask(protocol.Signal(signal.SIGINT))
        self.terminate(INTERRUPTED)

    def send_signal(self, signum: int) -> None:
        """Send a signal to all ranks, as `ProcessContext.send_signal` does."""
        if signum in ENDING:
            self._is_to_end, self.told_by = True, signum
        self._ask(protocol.Signal(signum))

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks that still run, as `ProcessContext.stacks` does."""
        for state in self._states:
            state.stacks = None
        self._ask(protocol.Show())
        deadline = time.monotonic() + FOR_STACKS + NODE_LOST_AFTER
        while not all(state.ended or state.stacks is not None for state in self._states):
            if self._done.wait(BEAT / 10) or time.monotonic() > deadline:
                break
        return {rank: text for state in self._states for rank, text in (state.stacks or {}).items()}

    def hear_signal(self, signum: int, node: int = 0) -> None:
        """Send a signal on that a node was sent; what a scheduler sends to each node is one signal."""
        now = time.monotonic()
        last, counts = self._heard.get(signum, (0.0, Counter[int]()))
        if now - last > TO_ALL_NODES:
            counts.clear()
        sent = max(counts.values(), default=0)
        counts[node] += 1
        self._heard[signum] = now, counts
        if counts[node] > sent:
            self.send_signal(signum)

    def _ask(self, command: protocol.End | protocol.Signal | protocol.Show) -> None:
        self._asked.append(command)

    def is_running(self) -> bool:
        """Return whether ranks may run: after them, their output is written."""
        return not all(state.ended for state in self._states)

    def is_over(self) -> bool:
        """Return whether `join` would return or raise at once."""
        return self._done.is_set()

    def reports(self) -> list[bytes]:
        """Return the pickled result of each rank, after `join` has returned True."""
        return [self._results[rank] for rank in range(self._plan.nprocs)]

    # ---- the start ---------------------------------------------------------------------------------------------------

    def _lay_out(self, agents: protocol.Agents) -> list[Node]:
        nodes = agents.nodes
        self._plan = dataclasses.replace(self._plan, nprocs=nodes[-1].ranks.stop, groups=len(nodes))
        return nodes

    def _greet(self, look: Callable[[], None] | None) -> None:
        """Wait until every agent has said hello, and compare versions."""
        deadline = time.monotonic() + TO_GREET
        while missing := [state for state in self._states if state.hello is None]:
            if time.monotonic() > deadline:
                names = ", ".join(str(state.node) for state in missing)
                raise EngineError(f"no agent has answered from {names} in {TO_GREET:.0f} s")
            if look is not None:
                look()
            for index, message in self._agents.receive(BEAT):
                state = self._states[index]
                if isinstance(message, protocol.Lost):
                    raise EngineError(f"the agent on node {state.node} has ended: {message.reason}")
                if isinstance(message, protocol.Hello):
                    state.hello = message
                    state.heard = time.monotonic()
                    self._agents.send(index, protocol.Ping(time.monotonic()))
        for state in self._states:
            state.check_versions()

    def _address(self) -> tuple[str, int]:
        """Return the address of the first node for MASTER_ADDR, and a port that is free there."""
        hello = self._states[0].hello
        assert hello is not None
        return hello.address or self.nodes[0].address or "127.0.0.1", hello.port

    # ---- the driver's thread -----------------------------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._serve()
            while self._start_all_again():
                self._serve()
        except BaseException as error:
            # In the thread of the program another one, as SystemExit, would end that.
            self._refusal = error if isinstance(error, Exception) else EngineError(f"the engine has ended: {error!r}")
        finally:
            # Each of them, whatever becomes of the others: a pool waits for the conclusion.
            steps: list[Callable[[], None]] = [self._close_agents, self._finish_output, self._conclude]
            for step in steps:
                try:
                    step()
                except BaseException as error:
                    self._refusal = self._refusal or error
            self._done.set()

    def _close_agents(self) -> None:
        self._agents.close(self.code())

    def _finish_output(self) -> None:
        """Write the rest; not for long after a signal, if nobody reads it."""
        self._writer.finish(self.is_given_up)

    def is_given_up(self) -> bool:
        """Tell whether output that nobody reads is to be left unwritten."""
        return self._patience.is_over(self._is_to_end)

    def _serve(self) -> None:
        """Handle messages until each node has said how its ranks ended, or is lost."""
        beat_at = before = time.monotonic()
        while not self._given_up.is_set() and not all(state.ended for state in self._states):
            for index, message in self._agents.receive(BEAT / 5):
                self._take(index, self._states[index], message)
            now = time.monotonic()
            if now - before > 2 * BEAT:
                for state in self._states:  # this process was stopped itself
                    state.heard = max(state.heard, now - NODE_LOST_AFTER / 2)
            before = now
            for state in list(self._states):
                limit = state.limit()
                if not state.ended and now - state.heard > limit:
                    self._node_lost(state, f"no sign of life for {limit:g} s")
            if now >= beat_at:
                beat_at = now + BEAT
                self._send_all(lambda: protocol.Ping(time.monotonic()))
            if self.is_given_up() and self._writer.sink.is_stalled(self._patience.seconds):
                self._writer.discard()
            self._command(now)

    def _send_all(self, message: Callable[[], Any]) -> None:
        for index, state in enumerate(self._states):
            if not state.ended:
                self._agents.send(index, message())

    def _command(self, now: float) -> None:
        """Send what the program has asked for, and the end of the others after a failure."""
        while self._asked:
            command = self._asked.popleft()
            self._send_all(lambda command=command: command)  # type: ignore[misc]
            if isinstance(command, protocol.End):
                self._end_at, self._give_up_at = float("inf"), now + command.grace_period + self._to_end
        if self._end_at is not None and now >= self._end_at:
            self._end_at, self._give_up_at = float("inf"), now + self._to_end
            self._send_all(lambda: protocol.End(0.0, True, bool(self.told_by)))
        if self._give_up_at is not None and now >= self._give_up_at:
            for state in self._states:
                if not state.ended:
                    self._node_lost(state, f"its agent has not ended the ranks in {self._to_end:.0f} s")

    def _failed(self) -> None:
        if self._end_at is None:
            self._end_at = time.monotonic() + self._grace_period

    def _take(self, index: int, state: NodeState, message: Any) -> None:
        if state.ended:
            return
        now = state.heard = time.monotonic()
        match message:
            case protocol.Hello():
                state.hello = message
                self._start_again(index, state)
            case protocol.Pong():
                state.measure(message, now)
            case protocol.Started(pids):
                state.pids = pids
            case protocol.Printed():
                self._writer.put(index, message)
            case protocol.Recorded(name, data):
                state.take_events(name, data)
            case protocol.Failing():
                self._failed()
            case protocol.Restarted(failure, pid):
                again = state.restarts + failure.restarts + 1
                text = failure.for_file().rstrip()
                logger.warning("%s; it is started again (%d of %d)", text, again, self._plan.max_restarts)
                state.pids[failure.rank - state.node.ranks.start] = pid
                self._writer.sink.add(failure.rank, failure.for_file())
            case protocol.Shown(stacks):
                state.stacks = stacks
            case protocol.Signalled(signum):
                self.hear_signal(signum, index)
            case protocol.Ended():
                self._judge(state, message)
            case protocol.Refused(reason):
                state.ended = True
                self._refusal = self._refusal or EngineError(f"node {state.node} cannot start its ranks: {reason}")
                self._failed()
            case protocol.Lost(reason):
                self._node_lost(state, reason)

    def _judge(self, state: NodeState, ended: protocol.Ended) -> None:
        state.ended = True
        self._results.update(ended.results)
        self.rows += ended.rows
        for failure, blob in ended.failures:
            self._failures.append(dataclasses.replace(failure, exception=unpickled(blob), at=failure.at - state.clock))
        self._past += [dataclasses.replace(failure, at=failure.at - state.clock) for failure in ended.past]
        if ended.failures:
            self._failed()

    def _node_lost(self, state: NodeState, reason: str) -> None:
        """
        Start the ranks of a node on another, or report them as lost: now in the log, and when all have ended in `join`.
        """
        state.ended = state.is_lost = True
        index = self._states.index(state)
        self._agents.drop(index)
        lost = state.lost(reason)
        if self._replace(index, state, reason):
            self._past += lost
            return
        logger.error("node %s was lost with its ranks %s: %s; all are ended", state.node, [*state.node.ranks], reason)
        self._failures += lost
        self.rows += [protocol.Row(failure.rank, failure.pid, None, 0.0) for failure in lost]
        self._failed()

    def _replace(self, index: int, state: NodeState, reason: str) -> bool:
        """Have the ranks of a lost node started elsewhere; return False if they may not or cannot be."""
        ends = self._is_to_end or self._end_at is not None
        if ends or self._plan.restarts_all or state.restarts >= self._plan.max_restarts:
            return False
        again = state.restarts + 1
        about = f"node {state.node} was lost ({reason}) with its {len(state.node.ranks)} ranks"
        try:
            self._agents.replace(index)
        except EngineError as error:
            logger.warning("%s; they cannot be started on another: %s", about, error)
            return False
        logger.warning("%s; they are started again on another (%d of %d)", about, again, self._plan.max_restarts)
        self._states[index] = NodeState(state.node, again)
        return True

    def _start_again(self, index: int, state: NodeState) -> None:
        """Start the ranks of a lost node at the new agent, which has said hello."""
        state.node = self._agents.nodes[index]
        if self._is_to_end:
            self._node_lost(state, "the job was to end before its ranks were started again")
            return
        try:
            state.check_versions()
        except EngineError as error:
            self._node_lost(state, str(error))
            return
        self._writer.rename(state.node)
        self._send_starts({index: state})

    def _send_starts(self, states: dict[int, NodeState]) -> None:
        starts = {
            index: self._plan.start(index, state.node, self._master, self._wants_result, state.restarts)
            for index, state in states.items()
        }
        # In a thread of its own: large arrays take their time, and the heartbeat goes on.
        args = starts, self._plan.parts
        threading.Thread(target=self._agents.start, args=args, name="mp-spawn start", daemon=True).start()

    def _start_all_again(self) -> bool:
        """Start the ranks of all nodes again after a failure; return False if there was none, or they may not."""
        plan = self._plan
        over = self._is_to_end or self._given_up.is_set() or self._refusal is not None
        if over or not plan.restarts_all or not self._failures or self._attempt >= plan.max_restarts:
            return False
        first = min(self._failures, key=lambda failure: failure.at)
        try:
            for index, state in enumerate(self._states):
                if state.is_lost:
                    self._agents.replace(index)
        except EngineError as error:
            logger.warning("%s; the ranks cannot be started again: %s", first.describe(), error)
            return False
        self._attempt += 1
        for failure in self._failures:
            self._writer.sink.add(failure.rank, failure.for_file())
            if failure is not first:
                logger.warning("%s", failure.describe())
        text = first.for_file().rstrip()
        logger.warning("%s; all ranks are started again (%d of %d)", text, self._attempt, plan.max_restarts)
        self._past += self._failures
        self._failures, self._results, self.rows = [], {}, []
        self._end_at = self._give_up_at = None
        # Those of a lost node are started when the agent in its place says hello.
        self._states = [
            NodeState(state.node, self._attempt) if state.is_lost else state.again(self._attempt)
            for state in self._states
        ]
        self._send_starts({index: state for index, state in enumerate(self._states) if state.hello is not None})
        return True

    def code(self) -> int:
        """Return the exit code of the job."""
        if self.exit_code is not None:
            return self.exit_code
        if self._refusal is not None:
            return 1
        return min(self._failures, key=lambda failure: failure.at).code() if self._failures else 0

    def _conclude(self) -> None:
        """Make the exception, once all output has been written."""
        sink = self._writer.sink
        if self._failures:
            failures = []
            for failure in self._failures:
                sink.add(failure.rank, failure.for_file())
                out, err = sink.text(failure.rank, "stdout"), sink.text(failure.rank, "stderr")
                failures.append(dataclasses.replace(failure, stdout=out, stderr=err))
            self._error = exception_of(failures, self._past)
        self.rows.sort()
