"""Functions for the ranks of P9, which import this module, so it imports nothing."""


def nothing(rank: int) -> None:
    """Do nothing."""


def import_numpy(rank: int) -> None:
    """Import NumPy, as most ranks do."""
    import numpy  # noqa: F401


def touch(rank: int, array) -> None:  # type: ignore[no-untyped-def]
    """Read the first and the last element of the argument."""
    assert array[0] == array[-1] == 0
