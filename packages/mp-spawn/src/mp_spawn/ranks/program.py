"""A program in a rank: the process becomes what `python script.py`, `python -m module` or `python -c code` would be.

Note [A rank is the program]
----------------------------
A rank of the command is no child of multiprocessing, and its program cannot tell it from a process that a shell has
started. So it is run neither by `runpy.run_path` nor by a `Process`, whatever the start method is:

    a fresh interpreter    its `__main__`, streams, sys.path and multiprocessing      zygote, or multiprocessing's spawn
      set_up               output, environment, processors                            child.py
      become               sys.argv, sys.path, __main__; then the program             here
    its end                joins threads, calls atexit functions, clears modules      the interpreter

`become` leaves by an exception, as `sys.exit` does, and never by `os._exit`: what follows the last line of a program is
the interpreter's own, and the launcher judges by the exit status, which comes after it. Until then `__main__` is the
program's module. `docs/launcher.md` has a table of the differences that are left, and a test that compares.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import pkgutil
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from multiprocessing import context, current_process, set_start_method, util
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from mp_core.system.descriptor import inheritable
from mp_spawn.ranks.child import leave_by, reporting, set_up, without_us
from mp_spawn.ranks.error_text import text_of
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.report_pipe import Kind, Reporter

#: With which the interpreter has started; empty if that is not known.
modules_at_start: set[str] = set()
# What a rank has imported at its first line, as the documentation says.
_KEPT = frozenset({"multiprocessing", "mp_core", "mp_spawn"})
# The bytes before the code in a compiled file.
HEADER_OF_PYC = 16


class ProgramProcess(context.SpawnProcess):
    """A program that is started by multiprocessing's spawn, where there is no zygote; its argument is the spec."""

    def _bootstrap(self, parent_sentinel: int | None = None) -> NoReturn:
        spec: RankSpec = self._args[0]  # type: ignore[attr-defined]
        with reporting(spec):
            set_up(spec, parents_sentinel=parent_sentinel)
            for fd in inheritable():  # multiprocessing leaves them to the children of this process
                os.set_inheritable(fd, False)
        # What multiprocessing prepares in a child of its own.
        current_process().name = "MainProcess"
        set_start_method(None, force=True)
        become(spec)


def become(spec: RankSpec) -> NoReturn:
    """Run the program of a rank that is set up, and leave as the interpreter does at the end of a program."""
    reporter = Reporter(spec.report, spec.parents_end, spec.report_at)
    with reporting(spec):
        fn, args = spec.payload.load()
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # a fork keeps that of its parent
    try:
        fn(spec.rank, *args)
    except SystemExit as leaving:
        leave_by(reporter, leaving)
    except BaseException as error:
        trace = without_us(sys.exc_info()[2])
        BaseException.with_traceback(error, trace)  # a class may have properties and methods of these names
        if type(error) is KeyboardInterrupt:
            is_told = reporter.send(Kind.INTERRUPTED)
        else:
            is_told = reporter.send(Kind.RAISED, text_of(error, trace, of_program=True))
        if hasattr(sys, "excepthook"):
            sys.excepthook = partial(_show, sys.excepthook, trace, is_told and sys.stderr is sys.__stderr__)
        raise
    sys.exit()


def _show(
    hook: Callable[..., Any],
    trace: TracebackType | None,
    is_told: bool,
    kind: type[BaseException],
    error: BaseException,
    _: TracebackType | None,
) -> None:
    """
    Call the program's hook for an exception that has ended it; the launcher writes what the standard one would, if it
    *is_told*.
    """
    sys.excepthook = hook
    sys.last_traceback = trace
    BaseException.with_traceback(error, trace)
    if hook is not sys.__excepthook__ or not is_told:
        hook(kind, error, trace)


def folder_of(path: str) -> str:
    """Return the folder from which a script imports first."""
    try:
        return os.path.dirname(os.path.realpath(path, strict=True))
    except OSError:  # the path leads to a pipe
        return os.path.dirname(path)


def run_script(rank: int, path: str, once: tuple[bytes, str] | None, arguments: list[str]) -> None:
    """Run a script, as ``python path arguments`` does; *once* is the text, and the folder, of one that is read once."""
    file = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if once is None and pkgutil.get_importer(file) is not None:  # a folder or a zip file
        if sys.flags.safe_path:
            sys.path.insert(0, file)
        _begin([path], file, arguments)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if once is None:
        with open(file, "rb") as script:
            once = script.read(), folder_of(path)
    source, folder = once
    main = _begin([path], folder, arguments)
    compiled = source.startswith(importlib.util.MAGIC_NUMBER)
    main.__loader__ = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", file)
    main.__file__ = file
    if sys.version_info < (3, 15):
        main.__cached__ = None  # type: ignore[attr-defined]
    try:
        code = marshal.loads(source[HEADER_OF_PYC:]) if compiled else compile(source, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.filename is None:  # it has a null character
            error.filename, error.lineno = file, source.count(b"\n", 0, source.find(b"\0")) + 1
        raise
    exec(code, vars(main))


def run_module(rank: int, name: str, arguments: list[str]) -> None:
    """Run a module, as ``python -m name arguments`` does."""
    _begin(["-m", name], os.getcwd(), arguments)
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def run_code(rank: int, text: str, arguments: list[str]) -> None:
    """Run *text*, as ``python -c text arguments`` does."""
    main = _begin(["-c", text], "", arguments)
    exec(compile(text, "<string>", "exec", dont_inherit=True), vars(main))


def _begin(words: list[str], folder: str, arguments: list[str]) -> ModuleType:
    """
    Set what the interpreter sets before a program begins, and return the program's module.

    *words* name the program on the command line, and *folder* is where it imports from first.
    """
    sys.argv[:] = [words[0], *arguments]
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    sys.orig_argv[:] = [sys.executable, *flags, *words, *arguments]
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]
        _forget_shadowed(folder)
    main = ModuleType("__main__")
    before = vars(sys.modules["__main__"])
    for name in ("__builtins__", "__annotations__"):  # the latter until Python 3.13
        if name in before:
            setattr(main, name, {} if name == "__annotations__" else before[name])
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return main


def _forget_shadowed(folder: str) -> None:
    """Forget the modules that only we have imported where *folder* has others of their names: the program wants its."""
    if not modules_at_start:
        return
    for name in [each for each in sys.modules.keys() - modules_at_start - _KEPT if "." not in each]:
        own = getattr(sys.modules[name], "__spec__", None)
        found = importlib.machinery.PathFinder.find_spec(name, [folder or os.getcwd()])
        if own is None or own.origin in ("built-in", "frozen") or found is None or found.loader is None:
            continue
        if found.origin != own.origin:
            for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[each]


def run_executable(rank: int, path: str, arguments: list[str]) -> None:
    """Become a program of any kind, which keeps the rank's pid, environment and output, and ends with the launcher."""
    from mp_core import set_parent_death_signal

    # The death pipe needs this interpreter; the kernel keeps the signal for the new program.
    set_parent_death_signal(signal.SIGKILL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [path, *arguments])
    except FileNotFoundError as error:  # there is such a file
        raise FileNotFoundError(error.errno, "the interpreter or loader that it names is missing", path) from None
    except OSError as error:
        error.filename = path
        raise
