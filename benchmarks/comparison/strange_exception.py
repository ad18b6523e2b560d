"""A task raises an exception that cannot be unpickled."""

from __future__ import annotations

from benchmarks.comparison.event import after, main, square, what_became_of
from benchmarks.comparison.libraries import Library


class NeedsTwoError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def square_or_raise(number: int) -> int:
    if number == 7:
        raise NeedsTwoError("this", "that")
    return square(number)


def event(library: type[Library]) -> str:
    pool = library()
    told = what_became_of([pool.submit(square_or_raise, number) for number in range(20)])
    return f"{told}; {after(pool)}"


if __name__ == "__main__":
    main(event)
