"""What becomes of ranks that run already when a signal or an error stops the start of others: they end as in a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mp_spawn.jobs.supervisor import Supervisor
from mp_spawn.ranks.process_handle import PidFd
from mp_spawn.ranks.rank import Rank
from mp_spawn.ranks.signals import INTERRUPTED, Ended, group_was_sent


def end_started(started: Mapping[int, tuple[Any, PidFd]], error: BaseException, job: Any) -> None:
    """
    End the ranks *started*, by their numbers, and what they leave: after a signal they may end by themselves, as in an
    interrupted `ProcessContext.join`; after any other *error* nobody wants them.
    """
    ranks = [
        Rank(number, process, pidfd, to_group=job.to_group_of(number)) for number, (process, pidfd) in started.items()
    ]
    supervisor = Supervisor(ranks, None, time_to_end=job.time_to_end if isinstance(error, Ended) else None)
    if isinstance(error, Ended):
        if job.own_group or not group_was_sent(error.signum, [rank.pid for rank in ranks], job.launcher.witness):
            supervisor.signal(error.signum)
        supervisor.was_told_to_end = True
        supervisor.end(0.0)
    elif isinstance(error, KeyboardInterrupt):
        supervisor.end(INTERRUPTED)
    else:
        supervisor.kill()
