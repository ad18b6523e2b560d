"""`timeline`: the block whose run is recorded. It makes the folder of events, and the report at the end.

Note [What can go wrong]
------------------------
    no such folder, no right to write, a wrong name, a disk without room for the first events    an error at the start
    another timeline in this process or in the one that has started it                           an error at the start
    the report cannot be written                     a warning; the folder of events stays, for `recover`
    an exception leaves the block                    the report is written, and the exception goes on
    this process is killed                           the folder of events stays, for `recover`
    this process forks, and the child leaves the block   nothing: the report is its parent's
    a child is killed, stopped, or still runs        its events so far are in the report
    a signal interrupts the begin                    what was begun is ended
    a signal interrupts the end                      the folder of events stays, for `recover`

The folder is beside the report, and is named after it: `run.html.x7a0c2.events`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import warnings

from mp_core.sharing import backend
from mp_core.system import machine
from mp_core.timeline import memory, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from mp_core.timeline.run import Run

#: The file of a folder that says what it is of.
ABOUT = "about.json"
EVENTS = 1 << 16
_MOST_EVENTS = 1 << 26


class timeline:
    """
    Record what the processes of a block do, and write a report at its end.

    Parameters
    ----------
    path : str or os.PathLike
        ``run.html``: a page for a browser, which needs no other file and no network. ``run.json``: the trace-event
        format of Perfetto and chrome://tracing. A file of that name is replaced.
    events : int, optional
        How many events of each process are kept, rounded up to a power of two: the newest. An event has 56 bytes.

    Raises
    ------
    ValueError
        *path* has another ending, or *events* is no number from 1 to 67108864.
    RuntimeError
        A timeline is recorded already, here or in the process that has started this one.
    OSError
        The folder of *path* is not there, cannot be written, or has no room for the events.

    Examples
    --------
    >>> with mp.timeline("run.html"):
    ...     pass
    """

    def __init__(self, path: str | os.PathLike[str], *, events: int = EVENTS) -> None:
        text = os.fspath(path)
        if not isinstance(text, str) or not text.endswith((".html", ".json")):
            raise ValueError(f"the timeline {text!r} must end in .html, for a browser, or .json, for Perfetto")
        if not isinstance(events, int) or not 1 <= events <= _MOST_EVENTS:
            raise ValueError(f"a timeline keeps 1 to {_MOST_EVENTS} events of each process, not {events!r}")
        if not machine.has_libshm():
            raise OSError(f"a timeline needs libshm, and this is {machine.name()}, where it does not run")
        self.path = os.path.abspath(text)
        if not os.path.isdir(os.path.dirname(self.path)):
            raise FileNotFoundError(f"the folder of the timeline {self.path} is not there: make it first")
        self._events = 1 << (events - 1).bit_length()
        self._pid = 0  # of the process that records
        self._prints = False

    def begin(self) -> None:
        """Begin to record, if this process does not yet; leaving the block ends it."""
        if self._pid != os.getpid():
            self._begin_run()

    def __enter__(self) -> timeline:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _repr_html_(self) -> str | None:
        """Return the page as a frame, for a notebook; None before the end, and for another format."""
        try:
            with open(self.path, encoding="utf-8") as file:
                page = file.read() if self._pid == 0 and self.path.endswith(".html") else ""
        except OSError:
            return None
        if not page:
            return None
        from html import escape

        return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 600px; border: 0"></iframe>'

    def begin_until_exit(self, prints: bool = False) -> None:
        """Begin now, and end with the process, after the children that it waits for; then print the sentences."""
        self._prints = prints
        self._begin_run()
        recorder.end_with_process(self._end_with_process)

    def _end_with_process(self) -> None:
        self._end()
        # Of a program that Ctrl-C has ended, Python then ends itself by SIGINT; but it forgets that when text is
        # executed, as `namedtuple` does. Text that raises it once more says so again.
        if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _begin_run(self) -> None:
        """Make the folder of events, record this process, and invite those that it starts: they join by `recorder`."""
        if backend.recorders:
            raise RuntimeError(
                f"a timeline is recorded already, in {backend.recorders[0].folder}: end that one first, or leave this "
                "one out"
            )
        folder, name = os.path.split(self.path)
        self._folder = tempfile.mkdtemp(prefix=f"{name}.", suffix=".events", dir=folder)
        self._before = os.environ.get(recorder.RUN)
        self._sampler: memory.Sampler | None = None
        try:
            about = {"path": self.path, "owner": os.getpid(), "began": backend.timeline_now(), "command": sys.orig_argv}
            about["cwd"] = os.path.join(os.getcwd(), "")
            with open(os.path.join(self._folder, ABOUT), "w", encoding="utf-8") as file:
                json.dump(about, file)
            own = recorder.begin(self._folder, self._events)
            own.name_process(_own_name())
            os.environ[recorder.RUN] = own.invitation()
            self._sampler = memory.Sampler(self._folder)
            self._pid = os.getpid()
        except BaseException:
            self._stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _stop(self) -> None:
        recorder.end()
        if self._before is None:
            os.environ.pop(recorder.RUN, None)
        else:
            os.environ[recorder.RUN] = self._before
        if self._sampler is not None:
            self._sampler.stop()

    def _end(self) -> None:
        if self._pid != os.getpid():
            return
        self._pid = 0
        self._stop()
        from mp_core.timeline.summary import summarise  # at the end, as what writes the report

        try:
            run = write(self._folder, self.path)
            if self._prints:
                print(self.path, *summarise(run).sentences, sep="\n", file=sys.stderr)
        except Exception as error:  # whatever it is, the run counts for more than its picture
            try:
                warnings.warn(
                    f"the timeline {self.path} could not be written ({type(error).__name__}: {error}); its events are "
                    f"in {self._folder}: mp-all timeline recover {self._folder}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            except RuntimeWarning as warning:  # a filter makes it an error
                print(f"RuntimeWarning: {warning}", file=sys.stderr)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)


def _own_name() -> str:
    from multiprocessing import process

    return str(process.current_process().name)


def write(folder: str, path: str) -> Run:
    """Write the report of a folder of events, and return the run; a file is replaced when the new one is whole."""
    from mp_core.timeline.run import load

    run = load(folder)
    if path.endswith(".html"):
        from mp_core.timeline.page import page

        text = page(run)
    else:
        from mp_core.timeline.trace_format import trace

        text = trace(run)
    made = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    try:
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except BaseException:
        if os.path.exists(made):
            os.unlink(made)
        raise
    return run


def recover(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> str:
    """
    Write the report of a run whose owner was killed, or could not write it; the folder of events stays.

    Parameters
    ----------
    folder : str or os.PathLike
        The folder of events, ``run.html.….events``.
    path : str or os.PathLike, optional
        The report; the one that the run asked for by default.

    Returns
    -------
    str
        The path of the report.

    Raises
    ------
    ValueError
        *folder* has no events of a timeline, or *path* ends neither in .html nor in .json.
    OSError
        The report cannot be written.

    Examples
    --------
    >>> mp_core.timeline.recover("nothing.events")
    Traceback (most recent call last):
    ValueError: nothing.events is no folder of events of a timeline
    """
    about = os.path.join(folder, ABOUT)
    if not os.path.isfile(about):
        raise ValueError(f"{os.fspath(folder)} is no folder of events of a timeline")
    if path is None:
        with open(about, encoding="utf-8") as file:
            path = json.load(file)["path"]
    path = os.fspath(path)
    if not path.endswith((".html", ".json")):
        raise ValueError(f"the report {path!r} must end in .html or .json")
    write(os.fspath(folder), os.path.abspath(path))
    return path
