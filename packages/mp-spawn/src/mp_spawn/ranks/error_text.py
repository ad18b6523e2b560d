"""What is said of an exception that ends a rank: one line, and below it the traceback.

    of a program     as the interpreter writes it at the end of ``python script.py``
    of a function    by the module `traceback`, which knows the lines of a notebook; without it as above: a rank that
                     has no descriptor or no memory left, or has changed its root or its user, cannot import it

The launcher writes it, after the output of all ranks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

# The longest reason, in characters.
LONGEST = 1000
LONGEST_CHAIN = 200  # errors
_write = sys.__excepthook__  # the program's may be another


def text_of(error: BaseException, trace: TracebackType | None, of_program: bool = False) -> str:
    """Return the error in one line, and below it the traceback *trace*."""
    reason = reason_of(error)
    is_long = _is_long_chain(error)
    if is_long or not of_program:
        try:
            with _library_first():
                import traceback  # only a rank that fails needs it

                return reason + "\n" + "".join(traceback.TracebackException(type(error), error, trace).format())
        except Exception:
            pass  # no such module, one of the program's, or an exception that has none of what exceptions have
    written = "" if is_long else _written_by_interpreter(error, trace)
    return reason + "\n" + (written or reason + "\n")


def _is_long_chain(error: BaseException) -> bool:
    """Tell whether the error follows from so many others that the interpreter, which recurses, may not write it."""
    of: Any = BaseException  # a class may have properties of these names
    chain = error
    for _ in range(LONGEST_CHAIN):
        chain = of.__cause__.__get__(chain) or of.__context__.__get__(chain)
        if chain is None:
            return False
    return True


def reason_of(error: BaseException) -> str:
    """
    Return the type, and the first line of the message that is not blank.

    >>> reason_of(ValueError("a number\\nand more"))
    'ValueError: a number'
    """
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        lines = [line.strip() for line in str(error).splitlines()]
    except BaseException:  # also one that would end this rank without a report
        lines = ["<its text is unavailable: str() raised an exception>"]
    first = next(filter(None, lines), "")
    return f"{name}: {first[:LONGEST]}" if first else name


def _written_by_interpreter(error: BaseException, trace: TracebackType | None) -> str:
    BaseException.with_traceback(error, trace)  # a class may have a method of this name
    written = _Written(getattr(sys, "stderr", None))
    is_missing = not hasattr(sys, "stderr")
    sys.stderr = written
    try:
        # From Python 3.13 on the interpreter imports `traceback`, and does without it if it cannot.
        with _library_first() if sys.version_info >= (3, 13) else contextlib.nullcontext():
            _write(type(error), error, trace)
    except Exception:
        pass  # of a signal handler, say
    finally:
        sys.stderr = written.stream
        if is_missing:
            del sys.stderr
        written.thread = 0
    return "".join(written.parts)


class _Written:
    """A stream that keeps what one thread writes. The others write on, as all do later: a logger may have kept it."""

    def __init__(self, stream: Any) -> None:
        self.parts: list[str] = []
        self.stream = stream
        self.thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self.thread:
            self.parts.append(text)
        elif self.stream is not None:
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        if self.stream is not None:
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def _library_first() -> Iterator[None]:
    """Import from the standard library: a script's folder, which comes first, may have modules of the same names."""
    before: Any = sys.path
    others: dict[str, Any] = {}
    try:
        library = os.path.dirname(os.__file__)
        sys.path = [library, os.path.join(library, "lib-dynload"), *before]
        for name in sys.stdlib_module_names & sys.modules.keys():
            module = sys.modules[name]
            file = vars(module).get("__file__") if type(module) is ModuleType else None
            if isinstance(file, str) and not file.startswith(library + os.sep):
                others[name] = sys.modules.pop(name)
        yield
    finally:
        sys.path = before
        sys.modules.update(others)
