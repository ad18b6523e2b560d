"""The program in which the points of a scene run: `python -m interrupts.program SCENE KIND MODULE all|SHARE SEED [AT]`.

It prints a line of JSON for each point. A problem at a place in the standard library's code is left out if the standard
library alone has one there, too: the same scene runs on `multiprocessing` as the yardstick.
"""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import random
import sys
from collections.abc import Iterator
from typing import Any

from .points import Place
from .scene import run_points
from .scenes import SCENES

__all__ = ["main"]

#: Functions of the standard library in which a signal is lost, or a descriptor, whoever calls them: logging's hooks of
#: a fork are written in Python, and `close` of a connection forgets its descriptor if `_close` has not begun.
OF_THE_LIBRARY = {"_acquireLock", "_releaseLock", "_ConnectionBase.close"}
#: The callbacks of its weak references, whose exceptions the interpreter drops.
OF_THE_LIBRARY |= {"WeakValueDictionary.__init__.<locals>.remove", "WeakSet.__init__.<locals>._remove"}
OF_THE_LIBRARY |= {"finalize.__call__"}
#: The finaliser of a process that multiprocessing started, and that of a proxy, which are such callbacks.
OF_THE_LIBRARY |= {"close_fds", "BaseProxy._decref"}
#: The end of a manager: an exception in it leaves the server's process to itself.
OF_THE_LIBRARY |= {"BaseManager._finalize_manager"}
#: It is written in Python: a signal in it, the second one in `Future.result`, leaves the condition locked for ever.
OF_THE_LIBRARY |= {"Condition.__exit__"}
#: A descriptor that one of these calls has just returned stays open, as in the standard library: it is only a number.
RETURN_DESCRIPTORS = (
    "os.pipe()",
    "os.dup(",
    ".recvmsg(",
    "os.pidfd_open(",
    "os.open(",
    "open_descriptors_for_child(",
    "memfd_create(",
)

#: In a share of the points, the most and the fewest of one scene.
MOST, FEWEST = 6, 3


def warm_up(first_use: bool) -> None:
    from support import leaks

    import mp_all

    if first_use:
        return
    leaks.warm_up()
    mp_all.get_context("fork").Queue()


def main(name: str, kind: str, module: str, share: str, seed: str, *asked: str) -> None:
    """Run the points of a scene, and print what was found at each."""
    scene = SCENES[name]
    if module == "mp_all":
        warm_up(scene.first_use)
    mp: Any = importlib.import_module(module)
    count = next(iter(run_points(scene, mp, [None], kind)))
    if "list" in asked:
        print(json.dumps(count))
        return
    places = count["places"]
    numbers = list(range(len(places)))
    if asked:
        numbers = [int(each) for each in asked]
    elif share != "all":
        some = min(MOST, max(FEWEST, int(len(numbers) * float(share))))
        numbers = sorted(random.Random(seed + name + kind).sample(numbers, min(some, len(numbers))))
    print(json.dumps({"count": len(places), "run": len(numbers), "problems": count["problems"]}), flush=True)
    yardstick = Yardstick(name, kind)
    for found in run_points(scene, mp, numbers, kind):
        if not found["places"]:  # it hung, and could not say where
            found["places"] = places[found["at"] : found["at"] + 1]
        if found["problems"] and module == "mp_all" and yardstick.has(found):
            found["problems"] = []
            found["as the standard library"] = True
        print(json.dumps(found), flush=True)


class Yardstick:
    """The places at which the standard library leaves something behind, too."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind
        self._places: list[Place] | None = None

    def has(self, found: dict[str, Any]) -> bool:
        """Tell whether the standard library has a problem there, too; during a fork, at the call of `os.fork`."""
        if all(each.startswith("left: descriptors") for each in found["problems"]) and any(
            call in linecache.getline(file, line) for file, line in found["lines"] for call in RETURN_DESCRIPTORS
        ):
            return True
        if any(name in OF_THE_LIBRARY for _, name, _ in found["frames"]):
            return True
        # A destructor that is written in Python drops an exception, as those of the standard library do.
        if any(name.endswith(".__del__") for _, name, _ in found["frames"]):
            return True
        places = found["places"][:1] if found["places"] and "/mp_" not in found["places"][0][0] else []
        places += [each for each in found["frames"] if each[1] == "Popen._launch"]
        return any(self._leaves(tuple(place)) for place in places)

    @functools.cache  # noqa: B019 - there is one
    def _leaves(self, place: Place) -> bool:
        return any(found["problems"] for found in self._run(place))

    def _run(self, place: Place) -> Iterator[dict[str, Any]]:
        if self._places is None:
            count = self._child("list")
            self._places = [tuple(each) for each in count[0]["places"]]
        numbers = [str(number) for number, each in enumerate(self._places) if each == place]
        for number in numbers[:8]:  # one by one: it may hang, and the first that has a problem is enough
            yield from self._child(number)[1:]

    def _child(self, *asked: str) -> list[dict[str, Any]]:
        # A program of its own: in this one, mp_all has extended multiprocessing.
        from support.scripts import run_python

        arguments = ("-m", __spec__.name, self._name, self._kind, "multiprocessing", "all", "0", *asked)
        done = run_python(*arguments, timeout=600)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main(*sys.argv[1:])
