"""The calls of processes, contexts and managers."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from typing import Any, NoReturn

import numpy as np
import things
from outcomes import LONG, method, mp, outcome, say, steps_of


def end_with(code: Any) -> None:
    sys.exit(code)


def fail(kind: type[BaseException]) -> NoReturn:
    raise kind("of a child")


def end_by(signum: int) -> None:
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    time.sleep(LONG)


def tell_names(queue: Any) -> None:
    own = mp.current_process()
    queue.put((own.name, own.daemon, own.exitcode, mp.parent_process().name, own._identity, mp.active_children()))


def tell_names_of_a_child(queue: Any) -> None:
    child = mp.Process(target=tell_names, args=(queue,))
    child.start()
    child.join()


def tell_of_a_start(queue: Any) -> None:
    queue.put(outcome(mp.Process(target=things.same, args=(1,)).start))


class OwnProcess(mp.Process):  # type: ignore[misc,name-defined]
    def __init__(self, queue: Any) -> None:
        super().__init__(name="its own name")
        self.queue, self.list = queue, [1]

    def run(self) -> None:
        self.queue.put((self.name, self.list, self._args, self._kwargs))


def shown(process: Any) -> str:
    return re.sub(r"(pid|parent)=\d+|-[\d:]+", "", repr(process))


ENDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{f"exit({code!r})": (end_with, (code,)) for code in (0, 1, 3, 256, 257, -1, None, True, "text", 1.5, [])},
    **{kind.__name__: (fail, (kind,)) for kind in (ValueError, KeyboardInterrupt, GeneratorExit, SystemExit)},
    **{f"_exit({code})": (os._exit, (code,)) for code in (0, 5, 255)},
    **{
        signum.name: (end_by, (signum,))
        for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE)
    },
    "a target that is none": (5, ()),
    "a target without its argument": (end_with, ()),
    "no target": (None, ()),
}


def ends() -> None:
    errors = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of the children
    for name, (target, args) in ENDS.items():
        process = mp.Process(target=target, args=args)
        say(name, *steps_of(process, f"start(); join({LONG}); exitcode; is_alive()"), shown(process))
        process.close()
    os.dup2(errors, 2)


def lives() -> None:
    process = mp.Process(target=time.sleep, args=(10 * LONG,))
    properties = "pid; ident; exitcode; daemon; sentinel"
    say(
        "before its start", *steps_of(process, f"join(); terminate(); kill(); is_alive(); {properties}"), shown(process)
    )
    process.start()
    steps = "is_alive(); join(0.01); join(0); join(-1); close(); start(); exitcode; daemon"
    sets = [outcome(setattr, process, *each) for each in (("daemon", True), ("name", 5), ("name", "new"))]
    say("while it runs", *steps_of(process, steps), *sets, process.pid == process.ident, shown(process))
    say("at its end", *steps_of(process, "terminate(); join(); exitcode; terminate(); kill(); start()"), shown(process))
    steps = f"close(); close(); is_alive(); join(); start(); terminate(); kill(); {properties}"
    say("closed", *steps_of(process, steps), shown(process))
    wrong = "group=5", "args=5", "kwargs=5", "name=5", "daemon='a'", "other=1"
    say("wrong arguments", *steps_of(mp, "; ".join(f"Process({each}).daemon" for each in wrong)))


def names() -> None:
    queue = mp.SimpleQueue()
    for name, process in {
        "a name": mp.Process(target=tell_names, args=(queue,), name="a name"),
        "a daemon": mp.Process(target=tell_names, args=[queue], daemon=True),
        "a child of a child": mp.Process(target=tell_names_of_a_child, kwargs={"queue": queue}),
        "a class of its own": OwnProcess(queue),
        "a daemon that starts one": mp.Process(target=tell_of_a_start, args=(queue,), daemon=True),
    }.items():
        process.start()
        say(name, queue.get())
        process.join()
    own = mp.current_process()
    say("the main process", *steps_of(own, "name; daemon; exitcode; is_alive(); join(); start(); close()"))
    say("its key", type(own.authkey).__name__, outcome(setattr, own, "authkey", 5))
    say("its parent and its children", mp.parent_process(), mp.active_children(), own.pid == os.getpid())
    if method != "fork":
        say("an argument that cannot be sent", outcome(mp.Process(target=things.same, args=(threading.Lock(),)).start))


def contexts() -> None:
    say("methods", mp.get_all_start_methods()[:1], mp.get_start_method(), mp.cpu_count() == os.cpu_count())
    say("set again", *(outcome(mp.set_start_method, name) for name in (method, "bad", None)))
    steps = "get_start_method(); set_start_method('fork'); get_context() is thing; get_context('bad'); get_context(5)"
    say("a context", *steps_of(mp.get_context("spawn"), steps))
    steps = "freeze_support(); allow_connection_pickling(); set_forkserver_preload(['os']); set_forkserver_preload([5])"
    say("others", *steps_of(mp, steps))


def managers() -> None:
    with mp.Manager() as manager:
        numbers, names, space = manager.list(), manager.dict(), manager.Namespace()
        names.update({"an array": np.arange(3), "a list": numbers, "a number": 5})
        numbers.append(5)
        steps = (
            "get('z', 3); pop('q'); setdefault('a', 5); keys(); __contains__('a'); __len__(); copy().keys(); nothing"
        )
        say("a dictionary", *steps_of(names, f"__getitem__('an array'); __getitem__('z'); {steps}"))
        say("a list in a dictionary", *steps_of(names, "__getitem__('a list')[0]; __getitem__('a list')[:]"))
        steps = "pop(); pop(); extend([3, 1, 2]); sort(); index(9); __len__(); reverse(); count(1); __getitem__(9)"
        say(
            "a list",
            *steps_of(numbers, f"{steps}; __getitem__(slice(None)); __add__([1]); __imul__(2)[:]"),
            str(numbers),
        )
        space.x = 5
        say("a namespace", *steps_of(space, "x; y; __str__(); __delattr__('x'); __str__()"))
        say("a value", *steps_of(manager.Value("i", 3), "value; set(6); get(); __str__()"))
        say("an array", *steps_of(manager.Array("i", [1, 2]), "__getitem__(slice(None)); __getitem__(5); __len__()"))
        steps = "put(1); put_nowait(2); put_nowait(3); qsize(); full(); get(); get(); get_nowait(); get(True, 0.01)"
        say("a queue", *steps_of(manager.Queue(2), f"{steps}; task_done(); empty(); put(3, True, 'a')"))
        say("a lock", *steps_of(manager.Lock(), "acquire(); acquire(False); acquire(True, 0.01); release(); release()"))
        say("an event", *steps_of(manager.Event(), "is_set(); wait(0.01); set(); wait(); clear(); is_set()"))
        steps = "Barrier(1).wait(); Semaphore(0).acquire(False); RLock().release(); Condition().notify()"
        say("other things", *steps_of(manager, f"{steps}; JoinableQueue().task_done(); BoundedSemaphore(1).release()"))
        sent: list[Any] = [things.NotSent(), threading.Lock()]
        say("a value that cannot be sent", *(outcome(names.__setitem__, "x", each) for each in sent))
        say("a pool of it", *steps_of(manager, "Pool(1).apply(abs, (-3,)); Pool(1).map(abs, [-1, 2])"))
        child = mp.Process(target=names.__setitem__, args=("of a child", 1))
        child.start()
        child.join()
        say("from a child", outcome(names.get, "of a child"))
        say("started again", outcome(manager.start))
    say("after its end", outcome(names.get, "a"), *steps_of(manager, "dict(); shutdown(); start()"))


if __name__ == "__main__":
    mp.set_start_method(method)
    for part in (ends, lives, names, contexts, managers):
        part()
