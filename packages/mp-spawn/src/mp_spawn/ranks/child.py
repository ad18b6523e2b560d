"""Inside a rank: set the process up, call `fn`, and report to the parent how that ended."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import parent_process, util
from types import TracebackType
from typing import Any, NoReturn, cast

from mp_core.children import death_pipe
from mp_core.system import settings
from mp_spawn.calls.payload import InheritedFd
from mp_spawn.calls.pickling import dumps, dumps_plainly
from mp_spawn.ranks.error_text import text_of
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.report_pipe import Kind, Reporter
from mp_spawn.ranks.signals import take_missed

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def set_up_and_call(spec: RankSpec, close_others: Callable[[], None] | None = None) -> None:
    """Run a rank: the target of its process. *close_others* closes the descriptors that a forked rank must not keep."""
    parent: Any = parent_process()
    with reporting(spec):
        set_up(spec, close_others, parent.sentinel)
        call(spec)


def set_up(spec: RankSpec, close_others: Callable[[], None] | None = None, parents_sentinel: int | None = None) -> None:
    """Set up the process of a rank, before any of the user's modules is imported; called once."""
    if spec.death_pipe is not None:
        death_pipe.arm(spec.death_pipe.fd)
    elif parents_sentinel is not None:
        death_pipe.arm(parents_sentinel)  # its parent alone has the other end
    if close_others is not None:
        close_others()
    spec.report.move_up()
    if spec.own_group:
        os.setpgid(0, 0)
    if spec.output is not None:
        _redirect(spec.output)
    if spec.is_program:
        _take_input(spec.stdin)
    _buffer_whole_lines()
    os.environ.update(spec.env)
    if settings.is_set("MP_TIMELINE_RUN"):
        from mp_core.timeline import name_process

        name_process(f"rank {spec.rank}")
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    if spec.seed is not None:
        from mp_core.children.random_streams import set_stream

        set_stream(spec.seed, spec.rank)
    if spec.stacks is not None:
        from mp_spawn.ranks.diagnostics import write_stacks_to

        write_stacks_to(spec.stacks)
    if spec.sent_before is not None:
        take_missed(spec.sent_before)
    if spec.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, spec.mask)


def _redirect(output: tuple[InheritedFd, InheritedFd]) -> None:
    for number, name, inherited in zip((1, 2), ("stdout", "stderr"), output, strict=True):
        os.dup2(inherited.fd, number)
        # A stream keeps what it knows of its file; and under fork, the parent's may write elsewhere than to the
        # descriptor, as in a notebook or a test.
        file = os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        cast(Any, file.buffer).raw.name = f"<{name}>"
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    for fd in {inherited.fd for inherited in output} - {1, 2}:
        os.close(fd)


def _take_input(stdin: InheritedFd | None) -> None:
    """Have the program, and what it starts, read *stdin*, or nothing."""
    source = InheritedFd(os.open(os.devnull, os.O_RDONLY)) if stdin is None else stdin
    if source.fd == 0:  # it was closed
        os.set_inheritable(0, True)
    else:
        os.dup2(source.fd, 0)
        source.close()


def _buffer_whole_lines() -> None:
    """
    Have the streams written line by line, so that ranks that share one do not cut each other's lines in two.

    Under PYTHONUNBUFFERED, print() would write a text and the end of its line separately.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            cast(Any, stream).reconfigure(line_buffering=True, write_through=False)


def call(spec: RankSpec) -> None:
    """Call `fn` and report how that ended, in a process that is set up: the target of the zygote's ranks."""
    with reporting(spec) as reporter:
        fn, args = spec.payload.load()
        try:
            result = fn(spec.rank, *args)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # of the call itself
                error.add_note("a rank calls fn(rank, *args): the rank is the first argument")
            raise
        blob = b""
        if spec.wants_result:
            what = f"the result of rank {spec.rank}, {type(result).__name__},"
            blob = _pickled(spec.by_value, dumps, result, what, "", spec.payload.forked)
        reporter.send(Kind.RETURNED, blob=blob)


@contextlib.contextmanager
def reporting(spec: RankSpec) -> Iterator[Reporter]:
    """Report an exception raised in the block, and leave with an exit code that fits it."""
    reporter = Reporter(spec.report, spec.parents_end, spec.report_at)
    try:
        yield reporter
    except SystemExit as leaving:
        leave_by(reporter, leaving)
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            # The parent gets the same Ctrl-C and reports it; a traceback from each rank would only hide that.
            reporter.send(Kind.INTERRUPTED)
            _die_of(signal.SIGINT)
        from mp_core.children.main_module import lacks_guard, leave

        if lacks_guard(error):
            leave()
        blob = _pickled(spec.by_value, _error, error, spec.payload.forked)
        found = sys.exc_info()[2]  # a class may have a property of the name that its instances have this by
        trace = without_us(found) or found
        reporter.send(Kind.RAISED, text_of(error, trace), blob)
        sys.exit(1)


_C_LONGS = range(-(2**63), 2**63)


def leave_by(reporter: Reporter, leaving: SystemExit) -> NoReturn:
    """Raise *leaving* again, after a report if it does not say all."""
    code = leaving.code
    # Of a number that is no C long, Python makes 255.
    if code is None or (isinstance(code, int) and (code % 256 or code == 0 or code not in _C_LONGS)):
        raise leaving
    # A text, which Python prints; or a number like 256, of which the system would keep the 0 of a success.
    reporter.send(Kind.LEFT, f"sys.exit({code!r})")
    if isinstance(code, int):
        sys.exit(1)
    raise leaving


def _die_of(signum: signal.Signals) -> None:
    """Die of the signal as this process would by default, but first clean up its own children and queues."""
    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def without_us(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside this package; None if there is no such frame."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_HERE) and file != "<frozen runpy>":
            break
        trace = trace.tb_next
    return trace


def _pickled(by_value: bool, function: Callable[..., bytes], *args: Any) -> bytes:
    """
    Return what *function* pickles, arrays as NumPy does if *by_value*: another machine has none of our shared memory.
    """
    if not by_value or "mp_core.sharing.backend" not in sys.modules:
        return function(*args)
    from mp_core.sharing.backend import pickled_by_value

    return cast(bytes, pickled_by_value(function, *args).data)


def _error(error: BaseException, same_main: bool) -> bytes:
    with contextlib.suppress(BaseException):  # as for its text, which the report has
        try:
            return dumps(error, "the exception", same_main=same_main)
        except (OSError, ImportError, MemoryError):  # as `text_of` without its module
            return dumps_plainly(error)
    return b""
