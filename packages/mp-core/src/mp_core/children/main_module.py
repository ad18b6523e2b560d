"""The main module of this process, and whether the processes that it starts can import it.

    python program.py                          a child imports program.py again, under another name
    a notebook, a prompt, standard input, -c   there is no file to import: a child has an empty main module
    python -i program.py, at the prompt        likewise, since the prompt may have defined anything again
    python -m package                          multiprocessing does not import a package's __main__.py again

Note [python -m package]
------------------------
multiprocessing imports no package's __main__.py in a child, but a forked child has it. So the functions and classes of
such a program travel by name, as with multiprocessing, until a process may receive them that is no forked child. Those
that it defines after the first fork travel as their definitions. Standard input, ``-c``, a prompt and a notebook do not
run a module of a program, and may define a function again: theirs always do.

Note [A main module in another one]
----------------------------------
A profiler, a tracer or `exec` may run the program in a dict of its own, while `__main__` is the profiler. Nothing of
the program is found by its name then, so it travels as definitions: the target of a child, and what the child sends
back. A process knows that from a function of the program, whose globals are not `__main__`, or from a definition that
it has received.

Note [The missing guard]
------------------------
A child that imports the program runs its top level. If that starts processes, which would do the same, the child ends
with `MissingGuardError`. It is no news for the user in each child, so the child prints nothing: it ends by `signal`,
which no program uses, and the parent reports it once, as an exception of the pool or the launcher, or on stderr for a
plain `Process`, whose exit code is then 1, as in the standard library.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from multiprocessing import get_all_start_methods, get_start_method, process
from types import FunctionType
from weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType, TracebackType
    from typing import Any, NoReturn


#: What pickling raises for a function or class that has no name.
UNPICKLABLE = (pickle.PicklingError, AttributeError)


# The main module that was looked at last, its attributes, and what they say. By its identity: at the end of a program,
# its objects must be freed before the modules are cleared that their destructors use.
_main = 0
_file: Any = None
_spec: Any = None
_importable = False
_modules, _of_sys = sys.modules, vars(sys)


def main_can_be_imported() -> bool:
    """Tell whether a new process can have the contents of this process's `__main__` by importing it again."""
    try:
        main = _modules["__main__"]
    except KeyError:  # the interpreter is clearing its modules
        return _importable
    names = main.__dict__
    if id(main) != _main or names.get("__file__") is not _file or names.get("__spec__") is not _spec:
        _look(main, names)
    return _importable and "ps1" not in _of_sys


def _look(main: Any, names: dict[str, Any]) -> None:
    global _main, _file, _spec, _importable
    file, spec = names.get("__file__"), names.get("__spec__")
    if id(main) == _main and spec is _spec and file is None and _importable:
        return  # at the end of a program, before the handlers of the exit, Python removes `__file__`
    _importable = _can_be_imported(file, spec)
    _main, _file, _spec = id(main), file, spec


def _can_be_imported(file: Any, spec: Any) -> bool:
    if getattr(sys, "frozen", False):
        return True  # a new process executes the whole program again, which has its main module inside
    if spec is not None:
        return not spec.name.endswith("__main__")
    return file is not None and os.path.exists(file)


def has_name(function: Any) -> bool:
    """Return False for a function that a new process certainly cannot find by its name."""
    if "<" in function.__qualname__:
        return False
    return function.__module__ != "__main__" or is_in_each_main(function)


def is_in_each_main(thing: Any) -> bool:
    """Tell whether all that may receive *thing*, of the main module, have it in their own."""
    if main_can_be_imported():
        return not is_typed_in(thing)
    return _receivers_are_forked() and _was_there(thing)


class NotInherited(Exception):
    """A message needs something of the main module that its receivers, which were forked, may not have as it is."""


def is_imported(module: ModuleType) -> bool:
    """Tell whether an import finds this very module."""
    return _modules.get(module.__name__) is module


_SINGLETONS = (type(None), type(...), type(NotImplemented))


def is_found_by_name(thing: Any, same_main: bool = False) -> bool:
    """Tell whether another process finds the function or class *thing* by its name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if name is None or any(thing is each for each in _SINGLETONS):
        return True  # pickle knows
    if module is None:  # pickle knows; but of a function, only that its globals have no name
        return not isinstance(thing, FunctionType)
    if module == "__main__" and not same_main and not is_in_each_main(thing):
        return False
    found = sys.modules.get(module)
    if found is None:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


# Whether a process may receive messages that is no forked child of this program.
_has_others = getattr(process.current_process(), "_start_method", None) not in (None, "fork")


def receivers_may_differ() -> None:
    """Note that a process may receive messages that has another main module: see Note [python -m package]."""
    global _has_others
    _has_others = True


def _receivers_are_forked() -> bool:
    return not _has_others and _runs_once() and (get_start_method(True) or get_all_start_methods()[0]) == "fork"


def _runs_once() -> bool:
    prompts = "ps1" in _of_sys or sys.flags.interactive or sys.flags.inspect
    return not prompts and vars(_modules["__main__"]).get("__spec__") is not None


def is_typed_in(thing: Any) -> bool:
    """
    Tell whether *thing*, of the main module, is a function from a text that is no file, as a debugger or `exec` makes.

    A decorator that makes its functions from a text says what they wrap.
    """
    code = getattr(thing, "__code__", None)
    return code is not None and code.co_filename.startswith("<") and not hasattr(thing, "__wrapped__")


# The functions and classes of the main module when the first child was forked, by id; None before.
_at_first_fork: dict[int, ref[Any]] | None = None


# The globals of a program that does not run in `__main__`, by id.
_elsewhere: dict[int, dict[str, Any]] = {}
_has_definitions = False


def note_definitions() -> None:
    """Note that this process has received definitions."""
    global _has_definitions
    _has_definitions = True


def note_main(function: Any) -> None:
    """Note whether *function* is of a main module that is not `__main__`."""
    names = getattr(function, "__globals__", None)
    if names is not None and function.__module__ == "__main__" and names is not vars(_modules["__main__"]):
        note_definitions()
        _elsewhere[id(names)] = names


def has_definitions() -> bool:
    """Tell whether this process has definitions that are not in its main module: what it sends may need them."""
    return _has_definitions


def sends_definitions() -> bool:
    """Tell whether what a message names of the main module travels as a definition if it is not found there."""
    return _has_definitions or not main_can_be_imported()


def own_definitions() -> Iterator[Any]:
    """Yield the functions and classes of the main module, also those in its classes."""
    seen: set[int] = set()
    pending = [vars(_modules["__main__"]), *_elsewhere.values()]
    while pending:
        for value in list(pending.pop().values()):
            kind = type(value)
            thing = value.__func__ if kind is staticmethod or kind is classmethod else value
            is_class = issubclass(type(thing), type)
            if (is_class or type(thing) is FunctionType) and thing.__module__ == "__main__" and id(thing) not in seen:
                seen.add(id(thing))
                yield thing
                if is_class:
                    pending.append(dict(vars(thing)))


def note_fork() -> None:
    """Note what of a main module that cannot be imported the child has that is forked now."""
    global _at_first_fork
    if _at_first_fork is None:
        _at_first_fork = {id(thing): ref(thing) for thing in own_definitions()}


def _was_there(thing: Any) -> bool:
    if _at_first_fork is None:
        return True
    known = _at_first_fork.get(id(thing))
    return known is not None and known() is thing


def leave_out() -> None:
    """
    Have multiprocessing start children without the main module if they cannot import it.

    By itself it tries to import any main module with a ``__file__``, as ``python - <program`` has.
    """
    from multiprocessing import spawn  # the start of a child imports it

    standard = spawn.get_preparation_data
    if getattr(standard, "_leaves_out", False):
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = standard(name)
        if main_can_be_imported():
            return data
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    get_preparation_data._leaves_out = True  # type: ignore[attr-defined]
    get_preparation_data.__wrapped__ = standard  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data


# ---- the missing guard -----------------------------------------------------------------------------------------------

# A real-time signal, which ends a process silently.
_SIGNAL: int = getattr(signal, "SIGRTMIN", 0) + 13
_TO_END = 2.0  # seconds until a fork server that has closed its connections has ended


class MissingGuardError(RuntimeError):
    """
    The program starts processes, or sets how they start, at its top level, which each of them would run again.

    Examples
    --------
    >>> issubclass(mp_core.children.main_module.MissingGuardError, RuntimeError)
    True
    """


def missing_guard() -> MissingGuardError:
    """Return the error, with the text that names the program and shows the remedy."""
    main = vars(sys.modules["__main__"])
    name = main.get("__file__") or _file or "the program"
    return MissingGuardError(
        f"{name} starts processes, or sets how they start, at its top level.\nEach new process imports this file, and "
        "so would do the same. Put those lines under this test:\n\n"
        '    if __name__ == "__main__":\n'
        "        main()  # or the lines themselves\n"
    )


def check_guard() -> None:
    """Raise `MissingGuardError` in a process that is importing the main module of its parent."""
    if is_inheriting():
        watch_import()
        raise missing_guard()


def is_inheriting() -> bool:
    """Tell whether this process is importing the main module of its parent, or has still to begin."""
    return getattr(process.current_process(), "_inheriting", False)


def watch_import() -> None:
    """Leave by `leave` when this process, or a child of this fork server, ends for want of the guard."""
    if getattr(sys.excepthook, "_leaves", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if lacks_guard(error):
            leave()
        before(kind, error, trace)

    hook._leaves = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def lacks_guard(error: BaseException) -> bool:
    """
    Tell whether *error* has ended the import of the parent's main module for want of the guard.

    A child has its start method already, so `set_start_method` also is such an error: a `RuntimeError`.
    """
    if isinstance(error, MissingGuardError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names[-1:] == ["set_start_method"] and any(name.startswith("_fixup_main") for name in names)


def leave() -> NoReturn:
    """End this process, so that its parent knows why."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    signal.signal(_SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_SIGNAL})
    os.kill(os.getpid(), _SIGNAL)
    os._exit(1)


def is_missing_guard(code: int | None, popen: Any) -> bool:
    """Tell whether a process with this exit code and Popen object has ended for want of the guard."""
    return code == -_SIGNAL or getattr(popen, "missing_guard", False)


def has_fork_server_left() -> bool:
    """
    Tell whether the fork server, which has closed its connections, has ended for want of the guard.

    From CPython 3.14 on it imports the main module before it serves.
    """
    server: Any = getattr(_modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pid, deadline = getattr(server, "_forkserver_pid", None), time.monotonic() + _TO_END
    while pid is not None and time.monotonic() < deadline:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if found is not None:
            return found.si_status == _SIGNAL and found.si_code != os.CLD_EXITED
        time.sleep(0.01)
    return False


_reported = False


def watched(popen: Any, process: Any) -> Any:
    """
    Return *popen*, of a process that was just started, so that a missing guard in it is reported.

    Its arguments are freed if it ends without having received them.

    Its `missing_guard` is True from then on. The owner of a process whose `reports_missing_guard` is True reports it.
    """
    popen.__class__ = _watching(type(popen))
    popen.missing_guard = False
    popen.reported = getattr(process, "reports_missing_guard", False)
    if popen.returncode is not None:
        popen.poll()  # another thread has seen the end before this, and nobody asks again
    return popen


_classes: dict[type, type] = {}


def _watching(kind: Any) -> type:
    if kind not in _classes:

        class Popen(kind):  # type: ignore[misc]
            __doc__ = kind.__doc__
            arguments: Any = None

            def poll(self, flag: int = os.WNOHANG) -> int | None:
                code: int | None = super().poll(flag)
                if (arguments := self.arguments) is not None:
                    from mp_core.children import child_descriptors

                    if child_descriptors.is_done(arguments, code is not None):
                        self.arguments = None
                if code == -_SIGNAL:
                    self.returncode = code = 1
                    self.missing_guard = True
                    if not self.reported:
                        _report()
                return code

        Popen.__qualname__ = kind.__qualname__
        Popen.__module__ = kind.__module__
        _classes[kind] = Popen
    return _classes[kind]


def _report() -> None:
    """Write the text to stderr, once."""
    global _reported
    if not _reported:
        _reported = True
        # Programs look for the name that multiprocessing prints.
        print(f"{MissingGuardError.__name__}, a RuntimeError: {missing_guard()}", file=sys.stderr, flush=True)
