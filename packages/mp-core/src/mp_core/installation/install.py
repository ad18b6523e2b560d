"""Installation: what is replaced in multiprocessing, in this process and in the children that it starts.

Note [Replaced attributes]
--------------------------
    install()                    ForkingPickler's table, which then serves subclasses        reducers.py
                                 BaseProcess.ajoin, which is new                             coroutines.py
      at the first message       ForkingPickler.dumps, reduction.dump                        pickling.py
                                 ForkingPickler.loads                                        failed_messages.py
      with its module            Connection.send, recv_bytes_into and _close                 connections.py, unread.py
                                 the reducer of Connection; a hook before each fork          connections.py
                                 Queue.__init__ of multiprocessing: standard locks           queue_locks.py
                                 ForkServer.ensure_running: what the server preloads         fork_server.py
                                 tempfile in connection: imported by the first listener      imports.py
                                 register of the one _ResourceSharer                         pickling.py
      at a start                 _Popen of SpawnProcess and ForkServerProcess                child_descriptors.py
                                 _Popen of ForkProcess                                       definitions.py
                                 spawn.get_preparation_data; _Popen of those again           main_module.py
                                 poll of Popen of popen_fork and popen_forkserver            one_reader.py
      with MP_TRACE=1            ForkingPickler.dumps, Queue.put                             trace.py
      on macOS                   the finalizer of the resource tracker                       resource_tracker.py
    import memory.block, lease   entries for Block and Lease in ForkingPickler's table       block.py, lease.py
    import mp_all                a finder for mp_all.queues and the like                     imports.py
                                 BaseContext.Pool and the locks of BaseContext               mp_all

Note [What an installation costs]
---------------------------------
A program that imports mp_all pays for what it uses. `install` replaces functions by small ones that import the module
with the work at their first call, and waits for the modules of multiprocessing that it extends (`imports.py`). So a
process loads libshm, the compiled library, with its first connection, block, lock or message, and NumPy's part with
its first array. `tests/packaging/test_start.py` has the list of modules.
"""

from __future__ import annotations

import sys
from functools import partial
from multiprocessing import context, process, reduction
from multiprocessing.reduction import ForkingPickler

from mp_core.system import imports, machine, packages, reducers, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def install() -> None:
    """
    Let the messages of ``multiprocessing`` carry shared memory, in this process and in children started after.

    It replaces ``ForkingPickler.dumps`` and ``loads``, ``reduction.dump``, and ``send`` and ``_close`` of
    ``Connection``: a message that fails, or that nobody reads before its pipe is closed, frees the memory of its
    blocks, an error on receiving is a `ReceiveError`, and `set_sharing` works for one connection. Children inherit the
    sharing strategy and the session.

    ``import mp_all`` and every ``init_reductions`` call it; importing ``mp_core`` does not. Calling it again does
    nothing.

    Examples
    --------
    >>> mp.install()
    """
    if not packages.begin():
        return
    reducers.install()
    _replace_messages()
    if sys.platform == "darwin":
        from mp_core.children import resource_tracker

        resource_tracker.install()
    if settings.traces():
        from mp_core.messages import trace

        load_messages()
        trace.install()
    _extend_starts()
    if getattr(process.current_process(), "_inheriting", False):
        imports.load("mp_core.children.main_module").watch_import()
    process.BaseProcess.ajoin = _join_in_a_coroutine  # type: ignore[attr-defined]
    imports.defer("multiprocessing.connection", "tempfile")  # a tenth of the start of a child that has a queue
    imports.when_imported("multiprocessing.connection", _extend_connections)
    imports.when_imported("multiprocessing.forkserver", _extend_fork_server)
    imports.when_imported("multiprocessing.resource_sharer", _extend_sharer)
    if machine.has_libshm():
        _watch_formats()


# ---- what is replaced ------------------------------------------------------------------------------------------------


def _replace_messages() -> None:
    """Replace the functions that pickle and unpickle messages by functions that import those with the work."""
    standard: Any = vars(ForkingPickler)

    def dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
        return load_messages().dumps(cls, obj, protocol)

    def loads(*args: Any, **options: Any) -> Any:
        return load_messages().loads(*args, **options)

    def dump(obj: Any, file: Any, protocol: int | None = None) -> None:
        load_messages().dump(obj, file, protocol)

    # A program may keep or wrap these, so they work at any time after.
    _before.extend((standard["dumps"].__func__, getattr(standard["loads"], "__func__", standard["loads"])))
    _first.extend((dumps, loads, dump))
    ForkingPickler.dumps = classmethod(dumps)  # type: ignore[assignment]
    ForkingPickler.loads = staticmethod(loads)
    reduction.dump = dump


# The functions of the standard library, or of another library that has replaced them: dumps, loads.
_before: list[Any] = []
# The functions that replace them until the first message.
_first: list[Any] = []


def load_messages() -> Any:
    """Put the functions themselves in the place of those that import them; return their module."""
    _pickling = imports.load("mp_core.messages.pickling")
    if not _pickling.is_set_up():
        _pickling.set_up(*_before, _make_pair)
    dumps, loads, dump = _first
    if vars(ForkingPickler)["dumps"].__func__ is dumps:
        ForkingPickler.dumps = classmethod(_pickling.dumps)  # type: ignore[assignment]
    if getattr(vars(ForkingPickler)["loads"], "__func__", None) is loads:
        ForkingPickler.loads = staticmethod(_pickling.loads)
    if reduction.dump is dump:
        reduction.dump = _pickling.dump
    return _pickling


def _make_pair(duplex: bool) -> Any:
    return imports.load("mp_core.channels.channel_connections").make_pair(duplex)


def _join_in_a_coroutine(self: Any, timeout: float | None = None) -> Any:
    """Wait until the child has ended, in a coroutine; as `join`."""
    return imports.load("mp_core.channels.coroutines").join_process(self, timeout)


def _extend_connections() -> None:
    load_messages()
    imports.load("mp_core.channels.connections").install()


def _extend_fork_server() -> None:
    imports.load("mp_core.children.fork_server").install()


def _extend_sharer() -> None:
    load_messages().note_waiting(sys.modules["multiprocessing.resource_sharer"]._resource_sharer)


def _watch_formats() -> None:
    """Let each module of `mp_core.messages.formats` register its reducers when its library has been imported."""
    for library in ("jax", "polars"):
        imports.when_imported(library, partial(_init_format, library))


def _init_format(library: str) -> None:
    try:
        imports.load(f"mp_core.messages.formats.{library}").init_reductions()
    except Exception:
        pass  # a version of the library that we do not know; its objects travel by its own pickle


def _extend_starts() -> None:
    """Extend `_Popen` of the kinds of process: Windows has SpawnProcess only."""
    for kind, extended, module in (
        ("SpawnProcess", _closing_start, "popen_fork"),  # spawn's Popen inherits its `poll`
        ("ForkServerProcess", _closing_start, "popen_forkserver"),
        ("ForkProcess", _start_by_fork, "popen_fork"),
    ):
        process: Any = getattr(context, kind, None)
        if process is not None and not getattr(process._Popen, "_extended", False):
            start = partial(_start, module, extended, process._Popen)
            start._extended = True  # type: ignore[attr-defined]
            process._Popen = staticmethod(start)


def _start(module: str, extended: Callable[..., Any], start: Callable[[Any], Any], process: Any) -> Any:
    """Start a child whose exit code any thread may read, by the `Popen` of *module*."""
    imports.load("mp_core.children.one_reader").install(module)
    return extended(start, process)


def _closing_start(start: Callable[[Any], Any], process: Any) -> Any:
    """
    Start a child without a main module that it cannot import; close its descriptors, successful or not.

    See Note [The missing guard] for the rest.
    """
    main_module = imports.load("mp_core.children.main_module")
    main_module.check_guard()
    main_module.leave_out()
    main_module.receivers_may_differ()
    try:
        popen = imports.load("mp_core.children.child_descriptors").closing(start, process)
    except (ConnectionError, EOFError):
        if main_module.has_fork_server_left():
            raise main_module.missing_guard() from None
        raise
    return main_module.watched(popen, process)


def _start_by_fork(start: Callable[[Any], Any], process: Any) -> Any:
    """
    Make what a forked child has to have in common with this process before its start begins.

    If a signal handler raises here, no process has started; during the fork, its caller would get the exception in
    place of the pid.
    """
    main_module = imports.load("mp_core.children.main_module")
    for function in (getattr(process, "_target", None), type(process).run):
        main_module.note_main(function)
    if main_module.sends_definitions():
        main_module.note_fork()
        imports.load("mp_core.messages.definitions").identify()
    return start(process)


packages.installed_by(install)
