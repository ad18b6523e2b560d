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
from typing import Any, cast

from mp_core import death_pipe, settings
from mp_spawn.payload import InheritedFd
from mp_spawn.pickling import dumps
from mp_spawn.rank_spec import RankSpec
from mp_spawn.report_pipe import Kind, Reporter

__all__ = ["call", "reporting", "run_module", "run_program", "run_script", "set_up", "set_up_and_call"]

# The longest reason, in characters.
LONGEST = 1000
_HERE = os.path.dirname(__file__)


def set_up_and_call(spec: RankSpec, close_others: Callable[[], None] | None = None) -> None:
    """
    Run a rank: the target of its process. *close_others* closes the descriptors that a forked rank must not keep.
    """
    with reporting(spec):
        set_up(spec, close_others)
        call(spec)


def set_up(spec: RankSpec, close_others: Callable[[], None] | None = None) -> None:
    """
    Set up the process of a rank, before any of the user's modules is imported; called once.
    """
    if spec.death_pipe is not None:
        death_pipe.arm(spec.death_pipe.fd)
    elif (parent := parent_process()) is not None:
        death_pipe.arm(cast(Any, parent).sentinel)  # its parent alone has the other end
    if close_others is not None:
        close_others()
    spec.report.move_up()
    if spec.own_group:
        os.setpgid(0, 0)
    if spec.output is not None:
        _redirect(spec.output)
    _buffer_whole_lines()
    os.environ.update(spec.env)
    if settings.is_set("MP_TIMELINE_RUN"):
        from mp_core.timeline import name_process

        name_process(f"rank {spec.rank}")
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    if spec.stacks is not None:
        from mp_spawn.diagnostics import write_stacks_to

        write_stacks_to(spec.stacks)
    if spec.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, spec.mask)


def _redirect(output: tuple[InheritedFd, InheritedFd]) -> None:
    for number, name, inherited in zip((1, 2), ("stdout", "stderr"), output, strict=True):
        os.dup2(inherited.fd, number)
        # Under fork, the parent's stream may write elsewhere than to the descriptor, as in a notebook or a test.
        file = os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, file)
    for fd in {inherited.fd for inherited in output} - {1, 2}:
        os.close(fd)


def _buffer_whole_lines() -> None:
    """
    Have the streams written line by line, so that ranks that share one do not cut each other's lines in two.

    Under PYTHONUNBUFFERED, print() would write a text and the end of its line separately.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            cast(Any, stream).reconfigure(line_buffering=True, write_through=False)


def call(spec: RankSpec) -> None:
    """
    Call `fn` and report how that ended, in a process that is set up: the target of the zygote's ranks.
    """
    with reporting(spec) as reporter:
        if spec.stdin is not None:  # not before: multiprocessing empties the standard input of a new process
            os.dup2(spec.stdin.fd, 0)
            os.close(spec.stdin.fd)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 (it stays open as long as the process)
        fn, args = spec.payload.load()
        result = fn(spec.rank, *args)
        blob = b""
        if spec.wants_result:
            what = f"the result of rank {spec.rank}, {type(result).__name__},"
            blob = _pickled(spec.by_value, dumps, result, what, "spawn", spec.payload.forked)
        reporter.send(Kind.RETURNED, blob=blob)


def run_script(rank: int, path: str, arguments: list[str]) -> None:
    """Run a script, as ``python path arguments`` does: the `fn` of the command."""
    import runpy

    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(rank: int, name: str, arguments: list[str]) -> None:
    """Run a module, as ``python -m name arguments`` does."""
    import runpy

    sys.argv[:] = [name, *arguments]
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_program(rank: int, path: str, arguments: list[str]) -> None:
    """Become a program of any kind, which keeps the rank's pid, environment and output, and ends with the launcher."""
    from mp_core import set_parent_death_signal

    # The death pipe needs this interpreter; the kernel keeps the signal for the new program.
    set_parent_death_signal(signal.SIGKILL)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.set_inheritable(fd, False)
    if sys.stdin.fileno() != 0:  # the interpreter's is empty, and the descriptor is still the launcher's
        os.dup2(sys.stdin.fileno(), 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [path, *arguments])


@contextlib.contextmanager
def reporting(spec: RankSpec) -> Iterator[Reporter]:
    """
    Report an exception raised in the block, and leave with an exit code that fits it.
    """
    reporter = Reporter(spec.report, spec.parents_end, spec.report_at)
    try:
        yield reporter
    except SystemExit as leaving:
        _leave(reporter, leaving)
    except KeyboardInterrupt:
        # The parent gets the same Ctrl-C and reports it; a traceback from each rank would only hide that.
        _die_of(signal.SIGINT)
    except BaseException as error:
        from mp_core.main_module import lacks_guard, leave

        if lacks_guard(error):
            leave()
        blob = _pickled(spec.by_value, _error, error, spec.payload.forked)
        reporter.send(Kind.RAISED, _text(error), blob)
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
    Die of the signal as this process would by default, but first clean up its own children and queues.
    """
    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _text(error: BaseException) -> str:
    """
    Return the error in one line, and below it the traceback.
    """
    import traceback  # only a rank that fails needs it

    summary = traceback.TracebackException(type(error), error, _without_us(error.__traceback__))
    return _reason(error) + "\n" + "".join(summary.format())


def _reason(error: BaseException) -> str:
    """
    Return the type, and the first line of the message that is not blank.
    """
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        lines = [line.strip() for line in str(error).splitlines()]
    except Exception:
        lines = ["<its text is unavailable: str() raised an exception>"]
    first = next(filter(None, lines), "")
    return f"{name}: {first[:LONGEST]}" if first else name


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """
    Return the traceback from the first frame outside this package; all of it if there is no such frame.
    """
    rest = trace
    while rest is not None:
        file = rest.tb_frame.f_code.co_filename
        if os.path.dirname(file) != _HERE and file != "<frozen runpy>":
            break
        rest = rest.tb_next
    return rest or trace


def _pickled(by_value: bool, function: Callable[..., bytes], *args: Any) -> bytes:
    """
    Return what *function* pickles, arrays as NumPy does if *by_value*: another machine has none of our shared memory.
    """
    if not by_value or "mp_core.native" not in sys.modules:
        return function(*args)
    from mp_core.native import pickled_by_value

    return cast(bytes, pickled_by_value(function, *args).data)


def _error(error: BaseException, same_main: bool) -> bytes:
    try:
        return dumps(error, "the exception", same_main=same_main)
    except Exception:
        return b""  # the report has its text
