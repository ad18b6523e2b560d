"""Messages to receivers that cannot share go by value, as multiprocessing alone would send them."""

from __future__ import annotations

import os
import pickle
import pickletools
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener, Pipe
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scripts import run_python, run_script, succeeded

import mp_all as mp

F = mp.reduction.ForkingPickler
N = 6_000  # 48 kB: not inline, and no more than a pipe holds


class Tagged(np.ndarray):
    """A subclass that pickles as NumPy does."""


class Offers:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        return bytearray, (bytes(self.data) if protocol < 5 else pickle.PickleBuffer(self.data),)


# Content of messages that every receiver with NumPy can load.
MESSAGES: dict[str, Callable[[], Any]] = {
    "no array": lambda: {"a": [1, None, "text"]},
    "a small array": lambda: np.arange(3),
    "a large array": lambda: np.arange(float(N)),
    "a shared array": lambda: mp.shared.full(N, 3.0),
    "a view of a shared array": lambda: mp.shared.full((N, 4), 3.0)[::2, 1],
    "an array of objects": lambda: np.array([1, None, "a"], object),
    "a masked array": lambda: np.ma.masked_less(np.arange(float(N)), 5),
    "a record array": lambda: np.rec.array([(1, 2.0)] * N, dtype=[("a", "i4"), ("b", "f8")]),
    "a generator": lambda: np.random.default_rng(5),
    "an object with a buffer": lambda: Offers(bytearray(40_000)),
}


def modules_in(message: Any) -> set[str]:
    """The packages whose names stand in a pickle."""
    texts = [arg for _, arg, _ in pickletools.genops(bytes(message)) if isinstance(arg, str)]
    return {word.partition(".")[0] for text in texts for word in text.split() if word.startswith("mp_")}


@contextmanager
def connected(family: str) -> Iterator[tuple[Connection, Connection]]:
    with Listener(family=family) as listener, Client(listener.address) as ours, listener.accept() as theirs:
        yield ours, theirs


@contextmanager
def not_shared(connection: Any = None) -> Iterator[None]:
    mp.set_sharing(False, connection)
    try:
        yield
    finally:
        mp.set_sharing(True, connection)


@pytest.mark.parametrize("what", MESSAGES)
def test_nothing_of_ours_goes_over_a_network(strategy: str, what: str) -> None:
    thing = MESSAGES[what]()
    with connected("AF_INET") as (ours, theirs):
        for sender, receiver in ((ours, theirs), (theirs, ours)):
            sender.send(thing)
            message = receiver.recv_bytes()
            assert modules_in(message) == set()
            back = pickle.loads(message)
            if isinstance(thing, np.ndarray):
                assert type(back) is type(thing)
                assert back.tolist() == thing.tolist()
                assert not mp.is_shared(back)
        # Afterwards other messages share as before.
        assert mp.is_shared(F.loads(F.dumps(mp.shared.zeros(3))))
    assert mp.memory_stats()["in_flight_bytes"] == 0


def test_a_message_over_a_network_is_what_multiprocessing_alone_would_send() -> None:
    with connected("AF_INET") as (ours, theirs):
        for thing in (5, np.arange(9.0), [np.arange(N), "text", np.ma.masked_array([1, 2], [0, 1])]):
            ours.send(thing)
            message = theirs.recv_bytes()
            if pickle.DEFAULT_PROTOCOL == 4:
                assert message == pickle.dumps(thing)
            # Since Python 3.14 the default is 5, and a reducer does not know the pickler's protocol: arrays take 4.
            assert b"mp_" not in message
            assert repr(pickle.loads(message)) == repr(thing)


def test_arrays_are_shared_over_a_local_socket_of_relatives(strategy: str) -> None:
    with connected("AF_UNIX") as (ours, theirs):
        array = mp.shared.zeros(N)
        ours.send(array)
        back = theirs.recv()
        back[0] = 7
        assert array[0] == 7
        assert mp.get_sharing(ours) is True


def test_a_reused_descriptor_is_examined_again(strategy: str) -> None:
    with connected("AF_INET") as (ours, _):
        number = ours.fileno()
        first, second = socket.socketpair()
        assert mp.get_sharing(ours) is False
        ours.close()
        os.dup2(first.fileno(), number)
        again, other = Connection(number), Connection(second.detach())
        first.close()
        again.send(mp.shared.ones(N))
        assert mp.is_shared(other.recv())
        again.close()
        other.close()


@pytest.mark.parametrize("make", [lambda: mp.Block(100), lambda: mp.Lease(int)], ids=["block", "lease"])
def test_an_object_without_a_value_form_is_refused_with_the_remedy(make: Any) -> None:
    thing = make()
    with connected("AF_INET") as (ours, theirs):
        with pytest.raises(TypeError, match="bytes\\(block\\)"):
            ours.send([np.zeros(N), thing])
        ours.send("next")
        assert theirs.recv() == "next"


def test_a_connection_can_be_told_not_to_share(strategy: str) -> None:
    ours, theirs = mp.Pipe()
    array = mp.shared.ones(N)
    with not_shared(ours):
        assert (mp.get_sharing(ours), mp.get_sharing(theirs), mp.get_sharing()) == (False, True, True)
        ours.send(array)
        assert not mp.is_shared(theirs.recv())
        with pytest.raises(TypeError, match="bytes\\(block\\)"):
            ours.send(mp.Block(10))
        theirs.send(array)
        assert mp.is_shared(ours.recv())
    ours.send(array)
    assert mp.is_shared(theirs.recv())
    ours.close()
    theirs.close()


def test_a_process_can_be_told_not_to_share(strategy: str) -> None:
    queue = mp.SimpleQueue()
    with not_shared():
        for thing in (mp.shared.ones(N), mp.shared.ones(3), np.ones(N)):
            queue.put(thing)
            back = queue.get()
            assert back.tolist() == thing.tolist()
            assert not mp.is_shared(back)
        assert modules_in(F.dumps([np.arange(N), mp.shared.ones(3)])) == set()
        with pytest.raises(TypeError, match="bytes\\(block\\)"):
            queue.put(mp.Block(10))
    queue.put(mp.shared.ones(3))
    assert mp.is_shared(queue.get())
    queue.close()


def shares(queue: Any) -> None:
    queue.put(mp.get_sharing())


def test_a_child_inherits_the_setting_of_its_parent(ctx: Any) -> None:
    queue = ctx.SimpleQueue()
    with not_shared():
        child = ctx.Process(target=shares, args=(queue,))
        child.start()
    assert queue.get() is False
    child.join(30)
    queue.close()


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_the_environment_sets_it_for_a_process(value: str) -> None:
    done = run_python("-c", "import mp_all as mp; print(mp.get_sharing())", MP_SHARE=value)
    assert succeeded(done) == f"{value != '0'}\n"


def test_an_invalid_environment_is_refused() -> None:
    done = run_python("-c", "import mp_all", MP_SHARE="perhaps")
    assert "MP_SHARE must be 1 to share memory or 0 to send by value, not 'perhaps'" in done.stderr


def test_a_wrong_connection_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="Connection, not int"):
        mp.set_sharing(False, wrong)
    with pytest.raises(TypeError, match="Connection, not int"):
        mp.get_sharing(wrong)
    with connected("AF_INET") as (ours, _), pytest.raises(ValueError, match="over a network"):
        mp.set_sharing(True, ours)


def test_a_connection_sent_by_value_needs_nothing_of_ours() -> None:
    first, second = mp.Pipe()
    third, fourth = Pipe()  # one with a ring needs our code at both ends
    with not_shared(first):
        first.send(third)
        message = second.recv_bytes()
        assert modules_in(message) == set()
        again = pickle.loads(message)
        again.send("through it")
        assert fourth.recv() == "through it"
        again.close()
    for each in (first, second, third, fourth):
        each.close()


# ---- peers without these packages ------------------------------------------------------------------------------------

FOREIGN = """
import sys
for name in ("mp_all", "mp_core", "mp_reductions", "mp_spawn", "mp_cuda"):
    sys.modules[name] = None
import numpy as np
from multiprocessing.connection import Client
address = sys.argv[1] if sys.argv[2] == "AF_UNIX" else ("127.0.0.1", int(sys.argv[1]))
"""
ECHO = (
    FOREIGN
    + """
with Client(address) as connection:
    while (thing := connection.recv()) is not None:
        connection.send(thing)
"""
)
FREE = """
import os
if os.fork():
    os._exit(0)  # the remaining process is an orphan
os.setsid()
"""


@pytest.mark.parametrize("start", [FREE, ""], ids=["no relative", "a descendant"])
@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX"])
def test_a_foreign_process_with_numpy_alone_understands(strategy: str, family: str, start: str) -> None:
    with Listener(family=family) as listener:
        address = listener.address if family == "AF_UNIX" else str(listener.address[1])
        # A process that ends at once makes it no descendant of ours by the time it speaks.
        peer = subprocess.Popen([sys.executable, "-c", start + ECHO, address, family])
        if start:
            peer.wait(60)
        with listener.accept() as connection:
            assert mp.get_sharing(connection) is False
            for thing in (np.arange(3), np.arange(float(N)), mp.shared.ones(N), np.ma.masked_less(np.arange(9), 3)):
                connection.send(thing)
                assert connection.recv().tolist() == thing.tolist()
            connection.send(np.random.default_rng(1))
            assert connection.recv().random() == np.random.default_rng(1).random()
            connection.send(None)
    assert peer.wait(60) == 0


def test_a_peer_in_another_mount_namespace_gets_values(tmp_path: Path, strategy: str) -> None:
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode:
        pytest.skip("no permission to make a mount namespace")
    with Listener(str(tmp_path / "socket"), "AF_UNIX") as listener:
        program = ECHO.partition("import numpy")[2]
        text = "import mp_all, sys\nimport numpy" + program
        peer = subprocess.Popen([unshare, "-m", sys.executable, "-c", text, listener.address, "AF_UNIX"])
        with listener.accept() as connection:
            assert mp.get_sharing(connection) is False
            connection.send(mp.shared.ones(N))
            assert connection.recv().tolist() == [1.0] * N
            connection.send(None)
        assert peer.wait(60) == 0


class Holder:
    """The object that a manager keeps for others."""

    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, thing: Any) -> None:
        self.kept = thing

    def give(self) -> Any:
        return self.kept

    def share(self) -> Any:
        return mp.shared.full(N, 5.0)


class Manager(BaseManager):
    pass


Manager.register("Holder", Holder)


def test_a_remote_manager_gets_and_gives_values(ctx: Any, strategy: str) -> None:
    with Manager(("127.0.0.1", 0), b"key", ctx=ctx) as manager:
        holder = manager.Holder()
        holder.keep(mp.shared.full(N, 2.0))
        back = holder.give()
        assert back.tolist() == [2.0] * N
        assert not mp.is_shared(back)
        assert not mp.is_shared(holder.share())
        del holder


def test_a_local_manager_shares(ctx: Any, strategy: str) -> None:
    with Manager(authkey=b"key", ctx=ctx) as manager:
        holder = manager.Holder()
        array = mp.shared.full(N, 2.0)
        holder.keep(array)
        back = holder.give()
        back[0] = 9
        assert array[0] == 9
        del holder, back


REMOTE = """
    import subprocess, sys
    from multiprocessing.managers import BaseManager
    import numpy as np
    import mp_all as mp

    class Manager(BaseManager):
        pass

    def stored(store={}):
        return store

    Manager.register("stored", stored)
    CLIENT = '''
    import sys
    for name in ("mp_all", "mp_core", "mp_reductions"):
        sys.modules[name] = None
    from multiprocessing.managers import BaseManager, DictProxy
    import numpy as np
    class Manager(BaseManager):
        pass
    Manager.register("stored", proxytype=DictProxy)
    manager = Manager(("127.0.0.1", int(sys.argv[1])), b"key")
    manager.connect()
    stored = manager.stored()
    print(stored["array"].sum(), type(stored["masked"]).__name__)
    stored["back"] = np.arange(50_000)
    '''

    if __name__ == "__main__":
        from multiprocessing.managers import DictProxy
        Manager.register("stored", stored, DictProxy)
        with Manager(("127.0.0.1", 0), b"key") as manager:
            held = manager.stored()
            held["array"] = np.ones(50_000)
            held["masked"] = np.ma.masked_array([1, 2], [0, 1])
            import textwrap
            subprocess.run([sys.executable, "-c", textwrap.dedent(CLIENT), str(manager.address[1])], check=True)
            print(held["back"].sum())
"""


def test_a_client_of_a_remote_manager_needs_numpy_alone(tmp_path: Path, strategy: str) -> None:
    done = run_script(tmp_path, REMOTE, MP_SHARING_STRATEGY=strategy)
    assert sorted(succeeded(done).split()) == sorted(["50000.0", "MaskedArray", str(sum(range(50_000)))])
