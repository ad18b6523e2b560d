"""Inside a rank: call `fn`, and tell the parent how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util
from types import TracebackType
from typing import Any, NamedTuple

from mp_spawn.payload import Source
from mp_spawn.pickling import dumps
from mp_spawn.place import Place
from mp_spawn.report import Kind, Reporter

__all__ = ["Orders", "reporting", "work"]

# Of a reason, in characters.
LONGEST = 1000
_HERE = os.path.dirname(__file__)


class Orders(NamedTuple):
    """What a rank is told; its process gets this as the one argument of `work`."""

    rank: int
    report: int
    payload: Source
    #: None where the rank has taken its place before its process object was unpickled.
    place: Place | None
    wants_result: bool


def work(orders: Orders) -> None:
    """The target of every rank's process."""
    fd = orders.report if orders.place is None else orders.place.report.fd
    with reporting(fd) as reporter:
        if orders.place is not None:
            orders.place.take()
        fn, args = orders.payload.load()
        result = fn(orders.rank, *args)
        blob = b""
        if orders.wants_result:
            blob = _ready_to_send()(result, f"the result of rank {orders.rank}, {type(result).__name__},")
        reporter.send(Kind.RETURNED, blob=blob)


@contextlib.contextmanager
def reporting(fd: int) -> Iterator[Reporter]:
    """
    Report what is raised inside, and leave with an exit code that says the same.
    """
    reporter = Reporter(fd)
    try:
        yield reporter
    except SystemExit as leaving:
        _leave(reporter, leaving)
    except KeyboardInterrupt:
        # The parent gets the same control-C and says so; a traceback from each rank would only bury that.
        _die_of(signal.SIGINT)
    except BaseException as error:
        reporter.send(Kind.RAISED, _text(error), _pickled(error))
        sys.exit(1)


def _leave(reporter: Reporter, leaving: SystemExit) -> None:
    code = leaving.code
    if code is None or (isinstance(code, int) and (code % 256 or code == 0)):
        raise leaving
    # A text, which Python prints; or a number like 256, of which the system would keep the 0 of a success.
    reporter.send(Kind.LEFT, f"sys.exit({code!r})")
    if isinstance(code, int):
        sys.exit(1)
    raise leaving


def _die_of(signum: signal.Signals) -> None:
    """
    End as the signal would have ended this process, but with its own children and queues looked after.
    """
    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _text(error: BaseException) -> str:
    """
    The error in one line, and below it the traceback.
    """
    import traceback  # only a rank that fails needs it

    summary = traceback.TracebackException(type(error), error, _without_us(error.__traceback__))
    return _reason(error) + "\n" + "".join(summary.format())


def _reason(error: BaseException) -> str:
    """
    The type, and the first line of the message in which there is something.
    """
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        lines = [line.strip() for line in str(error).splitlines()]
    except Exception:
        lines = ["<its text cannot be had>"]
    first = next(filter(None, lines), "")
    return f"{name}: {first[:LONGEST]}" if first else name


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """
    The traceback from the first frame that is not of this package; all of it when there is none.
    """
    rest = trace
    while rest is not None:
        file = rest.tb_frame.f_code.co_filename
        if os.path.dirname(file) != _HERE and file != "<frozen runpy>":
            break
        rest = rest.tb_next
    return rest or trace


def _ready_to_send() -> Callable[[Any, str], bytes]:
    """
    The function that pickles, once what the parent has registered is registered here, too.
    """
    # Not loaded: then the parent has nothing registered, and importing it would take time.
    if (children := sys.modules.get("mp_core._children")) is not None:
        children.register_loaded()
    return dumps


def _pickled(error: BaseException) -> bytes:
    try:
        return _ready_to_send()(error, "the exception")
    except Exception:
        return b""  # its text travels
