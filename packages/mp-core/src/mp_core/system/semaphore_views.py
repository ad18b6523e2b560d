"""What programs read of the standard classes' semaphores and conditions, by the counts that ours have instead."""

from __future__ import annotations

from collections.abc import Callable


class Count:
    """A number with the methods of a semaphore by which programs read it."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._get_value = self.get_value = count

    @property
    def _semlock(self) -> Count:
        return self

    def _is_zero(self) -> bool:
        return self.get_value() == 0


class Awaited:
    """
    A condition to wait at, without a lock: *wait* returns whether it holds within so many seconds, None for any number.

    >>> condition = Awaited(lambda seconds: seconds is None)
    >>> with condition:
    ...     condition.wait(0.1), condition.wait()
    (False, True)
    """

    def __init__(self, wait: Callable[[float | None], bool]) -> None:
        self._wait = wait

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        return True

    def release(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait(timeout)

    def notify_all(self) -> None:
        pass

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
