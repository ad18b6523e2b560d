"""The variables by which a rank of the command finds its place: the names that torch.distributed and torchrun use."""

from __future__ import annotations

#: Set for each rank: a command that a rank starts is no node of the job.
INSIDE = "MP_SPAWN_INSIDE"
RUN_ID = "TORCHELASTIC_RUN_ID"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
#: No variables of all ranks together: they are a rank's place, and how often it was started.
OF_A_RANK = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        RESTART_COUNT,
    }
)


def place_variables(
    rank: int, nprocs: int, local: tuple[int, int], group: tuple[int, int], master: tuple[str, int | str]
) -> dict[str, str]:
    """
    Return the variables for the place of a rank.

    *local* is its number on its node and how many ranks the node has, *group* the number of the node and how many there
    are, *master* the address and the port at which the ranks may meet.

    >>> place_variables(2, 4, (0, 2), (1, 2), ("10.0.0.1", 29500))["GROUP_RANK"]
    '1'
    """
    values = {
        "RANK": rank,
        "LOCAL_RANK": local[0],
        "WORLD_SIZE": nprocs,
        "LOCAL_WORLD_SIZE": local[1],
        "GROUP_RANK": group[0],
        "GROUP_WORLD_SIZE": group[1],
        # All ranks of a job have one role.
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": nprocs,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": master[1],
    }
    return {name: str(value) for name, value in values.items()}


def job_variables(role: str, run_id: str, max_restarts: int) -> dict[str, str]:
    """Return the variables that all ranks of a job of the command have in common."""
    return {
        "ROLE_NAME": role,
        RUN_ID: run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        # Rank 0 makes torch's store at MASTER_PORT. A torchrun around this command has set this to True for its own.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def restart_variables(environment: dict[str, str], restarts: int) -> dict[str, str]:
    """Return the variable that counts the restarts of a rank, if *environment* is that of a rank of the command."""
    return {RESTART_COUNT: str(restarts)} if RUN_ID in environment else {}
