"""The calls of queues and pipes, in an order that their users do not choose."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import things
from outcomes import LONG, method, mp, outcome, say, steps_of, submodule

CONNECTION = submodule("connection")
QUEUES = {
    "full": "put(1); put_nowait(2); put_nowait(3); full(); qsize(); put(3, True, 0.1); put(3, False); put(3, True, -1)",
    "empty": "get_nowait(); get(False); get(True, 0.01); get(True, 0); get(True, -1); empty(); full(); qsize()",
    "in order": "put(1); put(2); get(); get(timeout=9); put(obj=3, block=False); get(block=True, timeout=9)",
    "wrong calls": "get(True, 'a'); get(True, []); put(); put(1, True, 1, 1); get(1, 2, 3)",
    "closed": "put(1); get(); close(); put(1); get(); get_nowait(); close(); join_thread(); join_thread()",
    "joined before it is closed": "join_thread(); close(); join_thread()",
    "closed before it is used": "close(); join_thread(); put(1); get_nowait()",
    "cancelled": "cancel_join_thread(); put(1); close(); join_thread()",
}


def queues() -> None:
    for name in ("Queue", "JoinableQueue", "SimpleQueue"):
        for args in ("", "0", "2", "-1", "'a'", "1.5", "None"):
            say(f"{name}({args})", outcome(eval, f"type(mp.{name}({args})).__name__", {"mp": mp}))
    for name in ("Queue", "JoinableQueue"):
        for what, steps in QUEUES.items():
            queue = getattr(mp, name)(2)
            say(f"{name}, {what}", *steps_of(queue, steps))
            queue.close()
            queue.cancel_join_thread()
    say("JoinableQueue, tasks", *steps_of(mp.JoinableQueue(), "put(1); get(); task_done(); join(); task_done()"))
    say(
        "SimpleQueue", *steps_of(mp.SimpleQueue(), "empty(); put(1); empty(); get(); empty(); close(); put(1); close()")
    )
    queue = mp.SimpleQueue()
    say("SimpleQueue, what cannot be sent", outcome(queue.put, things.NotSent()), queue.empty())


def pipes() -> None:
    for args in ("", "True", "False", "'a'", "0", "None"):
        first, second = eval(f"mp.Pipe({args})")
        directions = [end.readable for end in (first, second)], [end.writable for end in (first, second)]
        say(f"Pipe({args})", *directions, outcome(second.send, 1), outcome(first.recv), outcome(first.send, 1))
    first, second = mp.Pipe()
    say("poll", *steps_of(first, "poll(); poll(0.01); poll(-1); poll('a')"))
    for args in ("b'abc'", "b'abc', 1", "b'abc', 1, 1", "np.arange(3)", "bytearray()", "memoryview(b'ab')"):
        say(f"send_bytes({args})", *steps_of(first, f"send_bytes({args})", np=np), outcome(second.recv_bytes))
    for args in ("'abc'", "b'abc', -1", "b'abc', 4", "b'abc', 1, 3", "b'abc', 1, -1", "5", ""):
        say(f"send_bytes({args})", *steps_of(first, f"send_bytes({args})"), second.poll())
    buffer = bytearray(4)
    for length, args in ((10, "buffer"), (2, "buffer, 1")):
        first.send_bytes(b"0123456789"[:length])
        say(
            f"recv_bytes_into({args}) of {length}", *steps_of(second, f"recv_bytes_into({args})", buffer=buffer), buffer
        )
    first.send_bytes(b"01")
    for args in ("buffer, -1", "buffer, 5", "b'abc'", "5"):
        say(f"recv_bytes_into({args})", *steps_of(second, f"recv_bytes_into({args})", buffer=buffer))
    say("recv_bytes(-1)", outcome(second.recv_bytes, -1))
    say("what cannot be sent", *(outcome(first.send, thing) for thing in (things.NotSent(), threading.Lock())))
    say("and then", outcome(second.poll))
    first.send_bytes(b"0123456789")
    say("recv_bytes of more", *steps_of(second, "poll(); recv_bytes(3); recv_bytes(3); readable; closed"))
    first, second = mp.Pipe()
    say("with", *steps_of(first, "__enter__() is thing; __exit__(None, None, None); closed"))
    steps = "recv(); recv_bytes(); poll(); send(1); send_bytes(b'a'); recv_bytes_into(bytearray(2))"
    say("closed", *steps_of(first, steps), *steps_of(first, "fileno(); close()"))
    say("the other end is closed", *steps_of(second, steps))
    reader, writer = mp.Pipe(False)
    say("the end that reads", *steps_of(reader, "send(1); send_bytes(b'a')"))
    say("the end that writes", *steps_of(writer, "recv(); recv_bytes(); poll(); close()"))
    say("a pipe without a writer", *steps_of(reader, "poll(); recv(); poll()"))


def waits() -> None:
    pairs = [mp.Pipe() for _ in range(2)]
    ends = [first for first, _ in pairs]
    wait = CONNECTION.wait
    say("wait for none", outcome(wait, ends, 0.01), outcome(wait, [], 0), outcome(wait, [ends[0], ends[0]], 0))
    pairs[0][1].send(1)
    say("wait for one", wait(ends, LONG) == ends[:1])
    pairs[1][1].close()
    say("wait for one and an end", wait(ends, LONG) == ends)
    ends[0].close()
    say("wait for what is closed", outcome(wait, ends, 0), outcome(wait, "a", 0))


def listeners() -> None:
    with CONNECTION.Listener(None, authkey=b"x") as listener:
        say("a listener", type(listener.address).__name__, listener.last_accepted)
        for key in (b"x", b"y"):
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(outcome(accepted, listener)))  # noqa: B023
            thread.start()
            say(f"a client with {key!r}", outcome(tell, listener.address, key))
            thread.join()
            say(f"its listener with {key!r}", *found)
        say("a text as a key", outcome(tell, listener.address, "y"))
    say("accept after close", outcome(listener.accept))
    say("a listener's key of text", outcome(CONNECTION.Listener, authkey="y"))
    say("no listener", outcome(CONNECTION.Client, "/no/such/socket"))
    say("no family", outcome(CONNECTION.Client, ("localhost", 1), "AF_X"), outcome(CONNECTION.Listener, "a", "AF_X"))


def accepted(listener: Any) -> Any:
    return listener.accept().recv()


def tell(address: Any, key: Any) -> None:
    CONNECTION.Client(address, authkey=key).send(1)


if __name__ == "__main__":
    mp.set_start_method(method)
    for part in (queues, pipes, waits, listeners):
        part()
