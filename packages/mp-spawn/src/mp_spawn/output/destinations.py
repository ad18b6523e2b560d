"""The output of the ranks: inherited, prefixed line by line, captured, or one file per rank and stream."""

from __future__ import annotations

import logging
import os
import re
import select
import selectors
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from mp_core.system.handler_errors import is_of_handler
from mp_spawn.calls.payload import InheritedFd

logger = logging.getLogger("mp_spawn")

STREAMS = ("stdout", "stderr")
# A line of more bytes than this is written in parts, so that a rank cannot fill the parent's memory.
LONGEST = 1 << 20
POLL_EVERY_S = 0.1
LOST = "the rest of the output of the ranks is lost: nobody reads it"
COLOURS = (36, 33, 35, 32, 34, 31)

Pair = tuple[InheritedFd, InheritedFd]


class NoThreadError(RuntimeError):
    """The system has no thread left that would read the output of the ranks."""


class Output:
    """Handles the ranks' standard output and standard error; owns the descriptors for them until they have started."""

    #: Nobody has read it in time: some of it is lost.
    is_given_up = False

    def __init__(self) -> None:
        self._ends: list[int] = []

    def ends_for(self, rank: int, restarts: int) -> Pair | None:
        """Return the two descriptors for a rank that is about to start; None leaves it those of this process."""
        return None

    def close_ends(self) -> None:
        """Close our copies of the descriptors, which the ranks have inherited."""
        ends, self._ends = self._ends, []
        for fd in ends:
            os.close(fd)

    def started(self) -> None:
        """Close them once all ranks have started, and begin to read."""
        self.close_ends()

    def own_fds(self) -> list[int]:
        """Return the descriptors that a forked rank must not keep."""
        return []

    def text(self, rank: int, stream: str) -> str:
        """Return the output of a rank, if it is kept."""
        return ""

    def add(self, rank: int, text: str) -> None:
        """Append the launcher's text about a failure to the standard error of a rank, if that is a file."""

    def is_writing(self) -> bool:
        """Tell whether there may be more of the output."""
        return False

    def is_stalled(self, seconds: float) -> bool:
        """Tell whether nobody has read the output for so long, so that ranks may wait before their full pipes."""
        return False

    def discard(self) -> None:
        """From now on, read without writing."""

    def finish(self, is_given_up: Callable[[], bool] = bool) -> None:
        """
        Write the rest and stop, once all ranks have ended; where nobody reads it, wait until *is_given_up* says True.
        """
        self.close_ends()


class Inherit(Output):
    """``"inherit"``: the ranks write where this process writes."""


class Files(Output):
    """A folder with ``rank-0.out``, ``rank-0.err``, …; a restarted rank appends."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._cut: set[tuple[int, str]] = set()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is a file" if self._folder.is_file() else error.strerror
            raise ValueError(f"the output folder {str(folder)!r} cannot be made: {why}") from None

    def ends_for(self, rank: int, restarts: int) -> Pair | None:
        for stream in STREAMS:
            self._ends.append(self.open(rank, stream, restarts))
        out, err = self._ends[-2:]
        return InheritedFd(out), InheritedFd(err)

    def open(self, rank: int, stream: str, restarts: int) -> int:
        """Open the file of a stream, which the caller closes."""
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if restarts else os.O_TRUNC)
        return os.open(self._folder / f"rank-{rank}.{stream[3:]}", mode, 0o666)

    def append(self, rank: int, stream: str, data: bytes, fd: int = -1) -> None:
        """
        Append to the file of a stream, which may be open as *fd*. After an error nothing more is written to it, which
        would be behind a gap; the launcher says so once.
        """
        if (rank, stream) in self._cut:
            return
        rest = memoryview(data)
        try:
            own = self.open(rank, stream, 1) if fd < 0 else -1
            try:
                while rest:
                    rest = rest[os.write(max(fd, own), rest) :]
            finally:
                if own >= 0:
                    os.close(own)
        except OSError as error:  # a full disk must not stop the ranks
            self._cut.add((rank, stream))
            logger.error("the file of the %s of rank %d ends here, it cannot be written: %s", stream, rank, error)

    def add(self, rank: int, text: str) -> None:
        try:
            with (self._folder / f"rank-{rank}.err").open("ab+") as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    file.write(b"\n")  # the rank has not ended its last line
                file.write(text.encode(errors="backslashreplace"))
        except OSError:
            pass  # the exception also has the failure


class Piped(Output):
    """
    A pipe per rank and stream, read by one thread, which never writes in the middle of another rank's line.

    The thread ends with the last pipe, or when the job has ended: a daemon that a rank has left behind may
    hold its pipes open for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._new: dict[int, tuple[int, str]] = {}
        self._pipes: dict[int, tuple[int, str]] = {}
        self._stop = False
        self._busy_since: float | None = None  # the thread, with one piece
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # The wake-up pipe of the thread, while it runs.
        self._wake: tuple[int, int] | None = None

    def ends_for(self, rank: int, restarts: int) -> Pair | None:
        out, err = (InheritedFd(self._pipe_for(rank, stream)) for stream in STREAMS)
        return out, err

    def _pipe_for(self, rank: int, stream: str) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        with self._lock:
            self._new[read] = (rank, stream)
        self._ends.append(write)
        return write

    def own_fds(self) -> list[int]:
        return [*self._pipes, *self._new, *(self._wake or ())]

    def started(self) -> None:
        self.close_ends()
        with self._lock:
            if self._wake is not None:
                os.write(self._wake[1], b"+")
            elif self._new:
                wake = os.pipe()
                thread = threading.Thread(target=self._run, args=(wake,), name="mp-spawn output", daemon=True)
                self._wake, self._thread = wake, thread  # first: a signal handler may raise while it starts
                try:
                    thread.start()
                except RuntimeError as error:
                    if is_of_handler(error):
                        raise
                    self._wake = self._thread = None
                    for fd in wake:
                        os.close(fd)
                    what = f"{error}, to read the output of the ranks"
                    raise NoThreadError(f"{what}; raise the limit (ulimit -u), or give output='inherit'") from None

    def finish(self, is_given_up: Callable[[], bool] = bool) -> None:
        self.close_ends()
        if self.is_given_up:
            self._stop = True
            return
        with self._lock:
            self._stop = True
            if self._wake is not None:
                os.write(self._wake[1], b".")
        if self._thread is not None and not has_written(self._thread, is_given_up):
            self.is_given_up = True  # the thread may have the lock
            return
        for fd in self._new:  # of ranks that were not started
            os.close(fd)
        self._new.clear()

    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def is_stalled(self, seconds: float) -> bool:
        since = self._busy_since
        return not self.is_given_up and since is not None and time.monotonic() > since + seconds

    def discard(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # the thread has it at the end only: no rank waits any more
        try:
            self.is_given_up = True  # when it can write again, the thread leaves the pipes
            self._pipes.update(self._new)
            self._new.clear()
        finally:
            self._lock.release()
        logger.error(LOST)
        with suppress(RuntimeError):  # the system has no thread left
            threading.Thread(target=self._discard_all, name="mp-spawn output", daemon=True).start()

    def _discard_all(self) -> None:
        """Read all pipes to their ends, or to that of the job."""
        with selectors.PollSelector() as selector:
            for fd in self._pipes:
                selector.register(fd, selectors.EVENT_READ)
            while self._pipes and not self._stop:
                for key, _ in selector.select(POLL_EVERY_S):
                    with suppress(BlockingIOError):
                        if not os.read(key.fd, 1 << 16):
                            selector.unregister(key.fd)
                            del self._pipes[key.fd]
                            os.close(key.fd)
        while self._pipes:
            os.close(self._pipes.popitem()[0])

    def _run(self, wake: tuple[int, int]) -> None:
        with selectors.PollSelector() as selector:  # takes no descriptor
            selector.register(wake[0], selectors.EVENT_READ)
            while True:
                with self._lock:
                    for fd in self._new:
                        selector.register(fd, selectors.EVENT_READ)
                    self._pipes.update(self._new)
                    self._new.clear()
                    if not self._pipes or self._stop:
                        self._end(wake)
                        return
                for key, _ in selector.select():
                    if key.fd == wake[0]:
                        os.read(wake[0], 4096)
                        continue
                    place = () if self._read(key.fd) else self._pipes.get(key.fd, ())
                    with self._lock:
                        if self.is_given_up:  # it has waited for a reader, and the pipes are another thread's
                            self._close_wake(wake)
                            return
                        if place:
                            selector.unregister(key.fd)
                            del self._pipes[key.fd]
                            os.close(key.fd)
                    if place:
                        self.handle(self.closed, *place)

    def _end(self, wake: tuple[int, int]) -> None:
        """Read the rest of the pipes without waiting; called with the lock held."""
        for fd in list(self._pipes):
            # At most 1 MiB: a process that still holds the pipe may write without end.
            for _ in range(LONGEST >> 16):
                if not self._read(fd, only_once=True):
                    break
            self._close(fd)
        self._close_wake(wake)

    def _close_wake(self, wake: tuple[int, int]) -> None:
        for fd in wake:
            os.close(fd)
        self._wake = None

    def _read(self, fd: int, only_once: bool = False) -> bool:
        """
        Read a piece and handle it; return False at the end of the file or, with *only_once*, if the pipe is empty.
        """
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return not only_once
        if data:
            self.handle(self.take, *self._pipes[fd], data)
        return bool(data)

    def _close(self, fd: int) -> None:
        os.close(fd)
        self.handle(self.closed, *self._pipes.pop(fd))

    def handle(self, action: Callable[..., None], rank: int, stream: str, *data: bytes) -> None:
        """Call *action*; after an exception go on reading, as the rank would wait for ever before a full pipe."""
        self._busy_since = time.monotonic()
        try:
            action(rank, stream, *data)
        except Exception:
            logger.exception("some of the %s of rank %s is lost", stream, rank)
        finally:
            self._busy_since = None

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """Take a piece of output."""
        raise NotImplementedError

    def closed(self, rank: int, stream: str) -> None:
        """Note the end of a stream."""


class Capture(Piped):
    """``"capture"``: kept for `ProcessContext.captured`, `Failure.stdout` and `Failure.stderr`."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: defaultdict[tuple[int, str], bytearray] = defaultdict(bytearray)

    def take(self, rank: int, stream: str, data: bytes) -> None:
        self._texts[rank, stream] += data

    def written(self) -> list[tuple[int, str]]:
        """Return the ranks and streams that have been written to, by rank, standard output first."""
        return sorted(self._texts, key=lambda place: (place[0], STREAMS.index(place[1])))

    def data(self, rank: int, stream: str) -> bytes:
        """Return the bytes that a rank has written."""
        return bytes(self._texts.get((rank, stream), b""))

    def text(self, rank: int, stream: str) -> str:
        return self.data(rank, stream).decode(errors="replace")


class Prefix(Piped):
    """
    ``"prefix"``: written to the same stream of this process, with the rank before each line.

    The bytes of a rank are written as they came. A line is written when it ends, so that no rank cuts another's of
    up to `LONGEST` bytes; a progress line, which returns to its start by ``\\r``, is written whenever it moves, and
    ended if another line comes.
    """

    #: The rank that reads from the terminal: its text is written before the line ends, as it may be a prompt.
    prompts: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._rests: defaultdict[tuple[int, str], bytes] = defaultdict(bytes)
        # By file, as both streams may be one: whose line there has not ended, and whether it has returned to its start.
        self._open: dict[object, tuple[tuple[int, str], bool]] = {}
        self._is_gone: set[str] = set()

    def take(self, rank: int, stream: str, data: bytes) -> None:
        data = self._rests.pop((rank, stream), b"") + data
        end = data.rfind(b"\n") + 1
        if self._is_shown(rank, stream) or rank == self.prompts or b"\r" in data[end:] or len(data) - end > LONGEST:
            end = len(data)
        if end < len(data):
            self._rests[rank, stream] = data[end:]
        if end:
            self._write(rank, stream, data[:end])

    def closed(self, rank: int, stream: str) -> None:
        rest = self._rests.pop((rank, stream), b"")
        # Without a prefix the output is that of one rank, as it is.
        if (rest or self._is_shown(rank, stream)) and self.prefix(rank):
            rest += b"\n"
        if rest:
            self._write(rank, stream, rest)

    def _is_shown(self, rank: int, stream: str) -> bool:
        """Tell whether the line that has not ended, where it would go on, is of this stream of a rank."""
        return bool(self._open) and self._open.get(_file_of(stream), ((), False))[0] == (rank, stream)

    def prefix(self, rank: int) -> str:
        """Return the text before each line of a rank."""
        return f"[rank {rank}] "

    def _write(self, rank: int, stream: str, data: bytes) -> None:
        # Looked up each time: a test runner or a notebook may have replaced it.
        target: TextIO | None = getattr(sys, stream)
        if target is None:
            return  # a program without a console
        label = self.prefix(rank)
        if label and getattr(target, "isatty", bool)() and not os.environ.get("NO_COLOR"):
            label = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{label}\x1b[0m"
        prefix = label.encode(errors="backslashreplace")
        try:
            # In one call, so that the output of another thread's print is before or after it.
            write_to(target, self._marked(_file_of(stream), (rank, stream), data, prefix) if prefix else data)
        except (OSError, ValueError) as error:
            # The reader has gone or the disk is full, which must not stop the ranks.
            if stream not in self._is_gone:
                self._is_gone.add(stream)
                logger.error("the %s of the ranks is lost from here on, it cannot be written: %s", stream, error)

    def _marked(self, file: object, owner: tuple[int, str], data: bytes, prefix: bytes) -> bytes:
        """Return *data* with the prefix at the start of each line, after the end of another stream's line."""
        last, has_returned = self._open.pop(file, (None, False))
        # The text of a rank takes the place of its own progress line, as `tqdm.write` would have it.
        goes_on = last in (None, owner) or (has_returned and last is not None and last[0] == owner[0])
        head = b"" if goes_on else b"\n"
        if last != owner or (has_returned and data[:1] != b"\n"):
            head += prefix
        body, newline = data.removesuffix(b"\n"), data[-1:] == b"\n"
        for other in [place for place, (whose, _) in self._open.items() if whose == owner]:
            del self._open[other]  # the program has put another stream there meanwhile
        if not newline:
            self._open[file] = owner, data[-1:] == b"\r"
        if b"\r" in body:
            body = _LINE_START.sub(lambda found: found[0] + prefix, body)
        else:
            body = body.replace(b"\n", b"\n" + prefix)
        return head + body + (b"\n" if newline else b"")


# The place after which there is another line, or the same one again.
_LINE_START = re.compile(rb"\n|\r(?!\n|\Z)")


def has_done(action: Callable[[], object], is_given_up: Callable[[], bool]) -> bool:
    """Write by *action*, in a thread if there can be one, and wait as `has_written` does."""
    thread = threading.Thread(target=action, name="mp-spawn output", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if is_of_handler(error):
            raise
        action()  # the system has no thread left
        return True
    return has_written(thread, is_given_up)


def has_written(thread: threading.Thread, is_given_up: Callable[[], bool]) -> bool:
    """Wait for the end of a thread that writes the output; return False, with a word, if *is_given_up* says so."""
    while thread.is_alive():
        thread.join(POLL_EVERY_S)
        if is_given_up() and thread.is_alive():
            logger.error(LOST)
            return False
    return True


def write_to(target: TextIO, data: bytes | memoryview) -> None:
    """Write bytes to a text stream, past its encoding; as text where there is nothing under it."""
    target.flush()
    buffer: Any = getattr(target, "buffer", None)
    if buffer is None:
        target.write(bytes(data).decode(getattr(target, "encoding", None) or "utf-8", "backslashreplace"))
        target.flush()
        return
    # Not into the buffer of a file: what could not be written would stay there, and fail again when Python ends.
    raw = getattr(buffer, "raw", buffer)
    rest = memoryview(data)
    with _lock_of(raw):
        while rest:
            written = raw.write(rest)
            if written is None:  # a terminal or pipe that does not block, and is full
                select.select([], [raw], [])
            else:
                rest = rest[written:]
    buffer.flush()


_locks: dict[tuple[int, int], threading.Lock] = {}
os.register_at_fork(after_in_child=_locks.clear)  # the thread that has one is the parent's


def _lock_of(raw: Any) -> threading.Lock:
    """Return the lock of a file: standard output and standard error may be one, which takes a long line in parts."""
    identity = _identity(raw)
    return threading.Lock() if identity is None else _locks.setdefault(identity, threading.Lock())


def _file_of(stream: str) -> object:
    """Return the file to which standard output or error goes; the name of one that is no file, as in a notebook."""
    target = getattr(sys, stream)
    buffer = getattr(target, "buffer", None)
    return (_identity(getattr(buffer, "raw", buffer)) or _identity(target) or stream) if buffer else stream


def _identity(file: Any) -> tuple[int, int] | None:
    """Return what two descriptors of one file have in common; None for an object that has no descriptor."""
    try:
        found = os.fstat(file.fileno())
    except Exception:  # of any object that a program has put there
        return None
    return found.st_dev, found.st_ino


class Captured(NamedTuple):
    """The output of a rank under ``output="capture"``."""

    stdout: str
    stderr: str


def output_for(kind: str | os.PathLike[str]) -> Output:
    """Return the output of that kind; any other value than the three words is a folder."""
    for word, output in (("inherit", Inherit), ("prefix", Prefix), ("capture", Capture)):
        if kind == word:
            return output()
    return Files(kind)
