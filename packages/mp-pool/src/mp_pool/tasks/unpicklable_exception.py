"""The exception in the place of a worker's exception that cannot be pickled or unpickled."""

from __future__ import annotations

from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]


class UnpicklableExceptionError(MaybeEncodingError):  # type: ignore[misc]
    """An exception of a worker that could not be pickled or unpickled; its type and text are in this one's text."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason, name)
        self.exc, self.value = reason, name
        self.args = (name, reason)

    def __str__(self) -> str:
        return f"{self.value} (the exception itself could not be sent: {self.exc})"
