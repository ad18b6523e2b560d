"""`logging_to_parent`: records of `logging` in ranks, workers and other children are handled by their parent.

Note [The way of a record]
--------------------------
    child: root logger -> _ToParent --JSON, one packet--> socket -> thread of the parent -> getLogger(name).handle()

A child finds the address of the socket in the object of its own process: `multiprocessing` gives each process a copy of
the dictionary `_config` of the process that made it. Under spawn and forkserver that dictionary is pickled, and
unpickling the address replaces the handlers of the child's root logger; in a forked child a hook after the fork does
so. The address thus reaches the children of every start method, pool and executor, and their children. Nothing is read
from the environment.

The socket has an abstract address, so no file is left; the parent accepts only processes of its own user, and
unpickles nothing. A child sends only to the user of its parent: the address is free after the parent's death. A packet
arrives whole or not at all, in the order in which its process sent it.

If the parent dies, or has called `close`, the connection breaks: the child writes this record and the later ones of
level WARNING and above to its standard error. If the parent is stopped, a child that logs waits, as with a full pipe. A
child that is killed loses nothing that it has sent.

Each process makes a connection of its own. A forked child closes its copies of the parent's descriptors: otherwise the
connections of its siblings would outlive the parent, and they would wait for ever for somebody to read.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import selectors
import socket
import struct
import sys
import threading
import time
import weakref
from multiprocessing import process, util
from types import TracebackType
from typing import Any, Self

from mp_core.system.weak_sets import members

KEY = "mp_spawn.log_records"
# In characters; a longer text is cut. The kernel's default limit of a packet is about 200 KB.
LONGEST = 20_000
SHORT = 1_000
PLAIN = (str, int, float, bool, type(None))
# The errors of a short supply, after which asking again at once would not help; and seconds to ask again.
LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
REST = 0.05
CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid


def logging_to_parent(level: int = logging.NOTSET) -> LoggingToParent:
    """
    Let this process handle the records that its children log.

    It applies to processes that are made after the call, by any start method: ranks, workers of pools and executors,
    other processes, and their children. In a child, the root logger gets a handler that sends records here instead of
    the handlers that it has, and each logger the level that it has here; one of a class of the program's own has the
    level that the child gives it. Here a record goes to the logger of its name, with the ``process`` and
    ``processName`` of the child. Arguments become text in the child, of 20,000 characters at most, and attributes from
    ``extra`` come along if they are numbers or text.

    Parameters
    ----------
    level : int
        Records below this level are not sent; by default the levels of the loggers decide.

    Returns
    -------
    LoggingToParent
        It can be closed, or used in a ``with`` statement; otherwise it ends with this process, after its children.

    Raises
    ------
    OSError
        The platform has no abstract sockets; Linux has them.

    Examples
    --------
    >>> with mp.logging_to_parent():
    ...     results = mp.run(divmod, args=(2,), nprocs=2)
    """
    return LoggingToParent(level)


class LoggingToParent:
    """
    The receiving side of `logging_to_parent`, which makes it.

    Parameters
    ----------
    level : int
        As there.

    Examples
    --------
    >>> receiver = mp.logging_to_parent()
    >>> receiver.close()
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        if sys.platform != "linux":
            raise OSError("logging_to_parent needs abstract sockets, which only Linux has")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")  # the kernel chooses a free abstract address
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._connections: set[socket.socket] = set()
        self._wake, self._stop = os.pipe()
        self._owner = os.getpid()
        config = vars(process.current_process())["_config"]
        self._config: dict[str, Any] = config
        self._before = config.get(KEY)
        config[KEY] = _Address(bytes(self._listener.getsockname()), level, os.geteuid())
        self._thread = threading.Thread(target=self._run, name="mp-spawn logging", daemon=True)
        _receivers.add(self)
        self._thread.start()
        # A negative priority: after multiprocessing has waited for the children of a program that ends.
        self._at_exit = util.Finalize(None, self.close, exitpriority=-100)

    def close(self) -> None:
        """
        Handle the records that have arrived, and receive no more; processes made from now on log by themselves.

        Examples
        --------
        >>> mp.logging_to_parent().close()
        """
        self._at_exit.cancel()
        if self._stop < 0 or os.getpid() != self._owner:
            return
        if self._before is None:
            self._config.pop(KEY, None)
        else:
            self._config[KEY] = self._before
        os.write(self._stop, b".")
        self._thread.join()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        _receivers.discard(self)
        for each in (self._listener, *self._connections):
            each.close()
        for fd in {self._wake, self._stop} - {-1}:
            os.close(fd)
        self._wake = self._stop = -1

    def _run(self) -> None:
        with selectors.PollSelector() as selector:  # takes no descriptor
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            stopping = False
            while True:
                # When it stops, it still takes everything that has arrived.
                events = [key for key, _ in selector.select(0 if stopping else None)]
                if stopping and not events:
                    break
                for key in events:
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fd == self._wake:
                        stopping = True
                        selector.unregister(self._wake)
                    elif not _receive(key.fileobj):
                        selector.unregister(key.fileobj)
                        with _fork_lock:
                            self._connections.discard(key.data)
                            key.data.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with _fork_lock:
            connection, problem = self._accepted()
        if connection is None:  # it has gone again, or this process has no descriptor left
            if problem in LACKS:
                time.sleep(REST)  # the listener stays readable meanwhile
            return
        if _peer(connection) != os.geteuid():
            self._connections.discard(connection)
            connection.close()
            return
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, connection)

    def _accepted(self) -> tuple[socket.socket | None, int]:
        """Return the next connection, or None and an error number."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            return None, error.errno or 0
        self._connections.add(connection)
        return connection, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _receive(connection: Any) -> bool:
    """Handle one record; return False at the end of the connection."""
    try:
        packet = connection.recv(1 << 20)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not packet:
        return False
    try:
        record = logging.makeLogRecord(json.loads(packet))
        logger = logging.getLogger(record.name if record.name != "root" else None)
        if record.levelno >= logger.getEffectiveLevel():
            logger.handle(record)
    except BaseException:
        # A handler or a filter of the program raised; the records of other processes must go on.
        try:
            logging.getLogger("mp_spawn").exception("a record of a child could not be handled")
        except BaseException as error:  # of the same handler
            sys.__excepthook__(type(error), error, error.__traceback__)  # which raises nothing
    return True


class _Address:
    """The parent's address in the dictionary that each process inherits. Unpickling it sets up a child."""

    def __init__(self, path: bytes, level: int, user: int) -> None:
        self.path, self.level, self.user = path, level, user

    def __reduce__(self) -> tuple[Any, ...]:
        return _redirect, (self.path, self.level, self.user, _levels(), int(logging.root.manager.disable))

    def redirect(self) -> None:
        """Let the root logger of this child send its records to the parent only."""
        logging.root.handlers[:] = [_ToParent(self.path, self.level, self.user)]


def _levels() -> dict[str, int]:
    """Return the levels of loggers by their names. Those of a class of the program are made by the child itself."""
    loggers = logging.root.manager.loggerDict.copy()
    levels = {name: int(logger.level) for name, logger in loggers.items() if type(logger) is logging.Logger}
    return {name: level for name, level in levels.items() if level} | {logging.root.name: int(logging.root.level)}


def _redirect(path: bytes, level: int, user: int, levels: dict[str, int], disabled: int) -> _Address:
    """In a child that was not forked: give its loggers their levels, and redirect the records."""
    for name, level_of_logger in levels.items():
        logging.getLogger(name).level = level_of_logger  # `setLevel` would clear the caches of all loggers, each time
    logging.disable(disabled)  # which clears them
    address = _Address(path, level, user)
    address.redirect()
    return address


def _peer(connection: socket.socket) -> int:
    """Return the user at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(packed)
    return int(user)


def _after_fork() -> None:
    global _fork_lock
    _fork_lock = threading.RLock()
    for receiver in members(_receivers):
        receiver._close_descriptors()
    address = vars(process.current_process())["_config"].get(KEY)
    if address is not None:
        address.redirect()


_receivers: weakref.WeakSet[LoggingToParent] = weakref.WeakSet()
# Held across a fork, so that the child knows of every descriptor. A handler that interrupts a fork may itself fork.
_fork_lock = threading.RLock()
os.register_at_fork(
    before=lambda: _fork_lock.acquire(), after_in_parent=lambda: _fork_lock.release(), after_in_child=_after_fork
)


class _ToParent(logging.Handler):
    """Sends each record to the parent; without a parent, to standard error."""

    def __init__(self, path: bytes, level: int, user: int) -> None:
        super().__init__(level)
        self._path, self._user = path, user
        self._socket: socket.socket | None = None
        self._lost = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._lost:
            try:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    self._socket.connect(self._path)
                    # After the parent's death any user may have bound its address.
                    if _peer(self._socket) != self._user:
                        self._socket.close()
                        raise ConnectionRefusedError("another user listens at the parent's address")
                self._send(self._socket, record)
                return
            except OSError:
                self._lost = True
            except Exception:
                self.handleError(record)
                return
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            last.handle(record)

    def _send(self, to: socket.socket, record: logging.LogRecord) -> None:
        try:
            to.send(_packed(record, LONGEST), socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            to.send(_packed(record, SHORT), socket.MSG_NOSIGNAL)


def _packed(record: logging.LogRecord, longest: int) -> bytes:
    """Return the record as JSON: its text, its traceback as text, and the other attributes that are plain."""
    known = {name: value for name, value in vars(record).items() if type(value) in PLAIN}
    known = {name: value for name, value in known.items() if not isinstance(value, str) or len(value) <= longest}
    text = record.getMessage()
    known |= {"msg": text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)", "args": None}
    if record.exc_info and not record.exc_text:
        known["exc_text"] = logging.Formatter().formatException(record.exc_info)
    known["exc_info"] = None
    for name, value in (("exc_text", known.get("exc_text") or record.exc_text), ("stack_info", record.stack_info)):
        if value:
            known[name] = value[-longest:]
    return json.dumps(known, ensure_ascii=False).encode(errors="backslashreplace")
