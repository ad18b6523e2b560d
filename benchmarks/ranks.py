"""What the ranks of P9 do. They import this module, so it imports nothing."""


def nothing(rank: int) -> None:
    """A rank that does nothing."""


def import_numpy(rank: int) -> None:
    """A rank that needs what every rank needs."""
    import numpy  # noqa: F401


def touch(rank: int, array) -> None:  # type: ignore[no-untyped-def]
    """A rank that reads the ends of what it was given."""
    assert array[0] == array[-1] == 0
