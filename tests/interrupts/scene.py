"""`Scene`: a program of a few lines, whose calls are interrupted at one point after the other.

    def put(mp, interrupt):
        queue = mp.Queue()
        interrupt(lambda: queue.put(1))      the call that is interrupted
        queue.close()                        what a program does in its `finally`
        queue.join_thread()

Each point runs in a forked child of the same process, so that no point can spoil the next. The child then asks whether
the exception has reached the caller, whether another thread can work, and what is left behind.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import active_children, util
from pathlib import Path
from typing import Any

from support import leaks
from support.waiting import until

from .points import Interrupted, Place, Points, notes_ignored

__all__ = ["KINDS", "Interrupt", "Scene", "run_points"]

#: What the handler does at a point: raises; raises an ordinary exception, as of a time limit; raises again at the next
#: point, as a second Ctrl-C; calls the scene's own function and returns.
KINDS = ("raises", "times out", "raises twice", "acts")
PATIENCE = 3.0
#: Seconds for one point. Beyond, its processes are killed and the point has hung.
LIMIT = 60.0


class TimeLimit(Exception):
    """Raised by the handler, like the exception of a time limit by SIGALRM."""


class Interrupt:
    """Given to a scene: calls a function with the interruption of this run; and the state in which its objects are."""

    def __init__(self, at: int | None, kind: str, tell: Callable[[Points], None]) -> None:
        self._at, self._kind, self._tell = at, kind, tell
        self.points = Points()
        self.error: BaseException | None = None
        self.called = False
        self.problems: list[str] = []

    def __call__(self, function: Callable[[], object], acts: Callable[[], object] | None = None) -> None:
        """Call *function*; *acts* is what a handler of the kind "acts" does."""
        assert not self.called, "a scene has one call that is interrupted"
        self.called = True
        # The first garbage collection may come anywhere: its finalisers would be points of one run only.
        gc.collect()
        gc.disable()

        def handle(place: Place) -> None:
            if self._kind == "acts":
                if acts is not None:
                    acts()
            else:
                raise TimeLimit if self._kind == "times out" else Interrupted

        at = () if self._at is None else (self._at, self._at + 1) if self._kind == "raises twice" else (self._at,)
        self.points = Points(at, handle, self._tell)
        self.error = self.points.run(function)
        gc.enable()

    @property
    def was_interrupted(self) -> bool:
        """Whether the handler has ended the call."""
        return isinstance(self.error, Interrupted | TimeLimit)

    def expect(self, holds: object, what: str) -> None:
        """Note *what* as a problem unless it *holds*."""
        if not holds:
            self.problems.append(what)


class Scene:
    """A function of (mp, interrupt), and the process in which its points begin."""

    def __init__(self, function: Callable[[Any, Interrupt], None], first_use: bool) -> None:
        self.function, self.name = function, function.__name__
        self.first_use = first_use  # nothing of the library has been used before

    def play(self, mp: Any, at: int | None, kind: str, tell: Callable[[Points], None]) -> dict[str, Any]:
        """
        Run the scene in this process with an interruption at point *at*; return what was found.

        Where the handler runs, *tell* is called.
        """
        ours = mp.__name__ == "mp_all"
        ignored: list[str] = []
        sys.unraisablehook = notes_ignored(ignored)
        threading.excepthook = lambda it: ignored.append(f"a thread ended by {it.exc_value!r}")
        before = _Left(ours, self.first_use)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        interrupt = Interrupt(at, kind, tell)
        problems: list[str] = []
        try:
            self.function(mp, interrupt)
        except BaseException:
            problems.append("the scene failed: " + traceback.format_exc(limit=-3))
        points, error = interrupt.points, interrupt.error
        if at is not None and points.handled and kind != "acts" and not interrupt.was_interrupted:
            problems.append(f"lost: the call ended with {error!r}")
        elif error is not None and not interrupt.was_interrupted:
            text = "".join(traceback.format_exception(error, limit=-4))
            problems.append(f"the call raised {text}")
        # The traceback holds what its frames held.
        interrupt.error = error = None
        problems += interrupt.problems + ignored
        if signal.pthread_sigmask(signal.SIG_BLOCK, ()) != mask:
            problems.append("the mask of signals has changed")
        problems += _locked(mp)
        problems += before.since()
        places = points.places if at is None else points.places[at : at + 1]
        return {"at": at, **where(points, places), "problems": problems}


def where(points: Points, places: list[Place]) -> dict[str, Any]:
    """Return where the handler has run so far."""
    return {"places": places, "handled": points.handled, "frames": points.frames, "lines": points.lines}


def _locked(mp: Any) -> list[str]:
    """Let another thread use every lock there is: start a process, make a lock, put and get."""
    steps: list[str] = []

    def use() -> None:
        context = mp.get_context("fork")
        process = context.Process(target=int)
        process.start()
        process.join()
        process.close()
        steps.append("a process")
        with context.Lock():
            steps.append("a lock")
        queue = context.Queue()
        queue.put([1, {}])
        steps.append("put")
        queue.get(timeout=PATIENCE)
        queue.close()
        queue.join_thread()
        steps.append("get")

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(2 * PATIENCE)
    return [] if len(steps) == 4 else [f"another thread has come only to {steps}"]


class _Left:
    """The resources of a process at one moment, beyond those that its caches hold."""

    def __init__(self, ours: bool, first_use: bool) -> None:
        self._counts = ours and not first_use
        self._comes_with_use = 1 if ours and first_use else 0
        self._before = self._now()

    def _now(self) -> dict[str, set[str]]:
        gc.collect()
        active_children()  # reaps
        subprocess._cleanup()  # type: ignore[attr-defined]  # so does the next use of subprocess
        found: dict[str, set[str]] = {
            "descriptors": {f"{name} {i}" for name, n in leaks.descriptors().items() for i in range(n)},
            "threads": {f"{thread.name} {thread.ident}" for thread in threading.enumerate()},
            "processes": _children(),
            "files": {str(path) for path in Path(os.environ["TMPDIR"]).rglob("*") if not path.is_socket()},
        }
        if self._counts:
            import mp_all

            mp_all.empty_cache()
            stats = mp_all.memory_stats()
            found |= {key: {f"{stats[key]}"} - {"0"} for key in leaks.HELD}
        return found

    def since(self) -> list[str]:
        more: dict[str, set[str]] = {}

        def is_clean() -> bool:
            more.clear()
            for key, now in self._now().items():
                rest = now - self._before[key]
                # With the first use comes the connection to the manager.
                sockets = [each for each in rest if key == "descriptors" and each.startswith("socket:")]
                if rest := rest - set(sockets[: self._comes_with_use]):
                    more[key] = rest
            return not more

        until(is_clean, PATIENCE)
        return [f"left: {key} {sorted(rest)}" for key, rest in more.items()]


def _children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            for pid in (task / "children").read_text().split():
                found.add(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}")
        except OSError:
            pass  # the thread or the process has ended
    return found


def run_points(
    scene: Scene, mp: Any, at: Iterable[int | None], kind: str, limit: float = LIMIT
) -> Iterable[dict[str, Any]]:
    """Play the scene once for each point in *at*, None for the count, each in a forked child of this process."""
    for point in at:
        yield _in_child(scene, mp, point, kind, limit)


def _in_child(scene: Scene, mp: Any, point: int | None, kind: str, limit: float) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.close(read)

            def tell(points: Points) -> None:
                os.write(write, (json.dumps(where(points, points.places[-1:])) + "\n").encode())

            result = scene.play(mp, point, kind, tell)
            with open(write, "w", closefd=False) as file:
                file.write(json.dumps(result) + "\n")
            util._exit_function()  # type: ignore[attr-defined]
            with open(write, "w") as file:
                file.write("ended\n")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    deadline = time.monotonic() + limit
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        # Not until the end of the pipe: a process that is left behind has it, too.
        if not select.select([read], [], [], min(left, 0.05))[0]:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            continue
        part = os.read(read, 1 << 16)
        if not part:
            break
        data += part
        if data.endswith(b"ended\n"):
            break
    os.close(read)
    lines = data.decode().splitlines()
    result: dict[str, Any] = {"at": point, "places": [], "handled": [], "frames": [], "lines": [], "problems": []}
    for line in lines:
        if line.endswith("}"):
            result |= json.loads(line)
    has_played = any(line.startswith('{"at"') for line in lines)
    if not data.endswith(b"ended\n"):
        late = time.monotonic() > deadline
        what = "the end of the process" if has_played else "the scene"
        result["problems"].append(f"{what} {'hung' if late else 'failed'}")
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not until(lambda: not _group(pid), PATIENCE):
        result["problems"].append(f"left running: {_group(pid)}")
        os.killpg(pid, signal.SIGKILL)
    return result


def _group(group: int) -> list[str]:
    """Return the names of the processes of a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    names = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text(errors="replace").split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if int(fields.split()[2]) == group and fields.split()[0] != "Z":
            names.append(f"{stat.parent.name} {name}")
    return names
