"""
A program that does what programs with processes do: each function of `IDIOMS` once, by the start method of the first
argument. It prints the same with multiprocessing and with mp_all, which test_idioms.py puts in its place.
"""

from __future__ import annotations

import ctypes
import logging
import logging.handlers
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection, shared_memory
from multiprocessing.managers import BaseManager, SharedMemoryManager

WAIT = 60  # seconds
GIVEN = {}


def keep(*given):
    GIVEN.update(enumerate(given))


def start(processes):
    for process in processes:
        process.start()
    return processes


def join(processes):
    """Return the exit codes of *processes*, once they have ended."""
    for process in processes:
        process.join(WAIT)
    return [process.exitcode for process in processes]


def run(ctx, target, *args):
    process = ctx.Process(target=target, args=args)
    process.start()
    process.join(WAIT)


def square(x):
    return x * x


def add(x, y=0):
    return x + y


def put_given(x):
    GIVEN[0].put(x * 2)
    return x


def count_given(n):
    for _ in range(n):
        with GIVEN[0].get_lock():
            GIVEN[0].value += 1
    with GIVEN[1]:
        GIVEN[2][n % 3] += 1


def pool_with_queue(ctx):
    queue = ctx.Queue()
    with ctx.Pool(2, keep, (queue,)) as pool:
        pool.map(put_given, range(6))
        return sorted(queue.get(timeout=WAIT) for _ in range(6))


def pool_with_shared_state(ctx):
    counter, lock, array = ctx.Value("i", 0), ctx.Lock(), ctx.Array("i", 3)
    with ctx.Pool(2, keep, (counter, lock, array)) as pool:
        pool.map(count_given, [1, 2, 3, 4], chunksize=1)
    return counter.value, array[:]


def pool_with_manager_queue(ctx):
    with ctx.Manager() as manager:
        queue, lock = manager.Queue(), manager.Lock()
        with ctx.Pool(2) as pool:
            for result in [pool.apply_async(into_queue, (queue, lock, n)) for n in range(4)]:
                result.get(WAIT)
        return sorted(queue.get() for _ in range(4))


def into_queue(queue, lock, n):
    with lock:
        queue.put(n)


def pool_calls(ctx):
    seen, errors = [], []
    with ctx.Pool(2) as pool:
        pool.apply_async(square, (3,), callback=seen.append).wait(WAIT)
        pool.apply_async(square, ("a",), error_callback=lambda e: errors.append(type(e).__name__)).wait(WAIT)
        out = [
            pool.map(square, range(5)),
            pool.starmap(add, [(1, 2), (3, 4)]),
            list(pool.imap(square, range(4), 2)),
            sorted(pool.imap_unordered(square, iter(range(4)))),
            pool.apply(add, (1,), {"y": 5}),
            pool.map_async(square, [1, 2]).get(WAIT),
            pool.starmap_async(add, [(1,), (2,)]).get(WAIT),
            pool.map(str.upper, ["a", "b"]),
            pool.map(Adder(4).add, [1, 2]),
            pool.map(Adder(1), [1]),
        ]
        pool.close()
        pool.join()
    return seen, errors, out


class Adder:
    def __init__(self, n):
        self.n = n

    def add(self, x):
        return self.n + x

    __call__ = add


def consume(tasks, results):
    for item in iter(tasks.get, None):
        results.put((item, item * item))
    results.put(None)


def producer_consumer(ctx):
    tasks, results = ctx.Queue(), ctx.Queue()
    workers = [ctx.Process(target=consume, args=(tasks, results), daemon=True) for _ in range(2)]
    start(workers)
    for n in range(10):
        tasks.put(n)
    for _ in workers:
        tasks.put(None)
    found = [results.get(timeout=WAIT) for _ in range(12)]
    return sorted(item for item in found if item), join(workers)


def work_off(queue, done):
    while True:
        n = queue.get()
        done.value += n
        queue.task_done()


def joinable(ctx):
    queue, done = ctx.JoinableQueue(), ctx.Value("i", 0)
    process = ctx.Process(target=work_off, args=(queue, done), daemon=True)
    process.start()
    for n in range(5):
        queue.put(n)
    queue.join()
    return done.value


class Worker(mp.Process):
    def __init__(self, queue, name):
        super().__init__(name=name)
        self.queue = queue

    def run(self):
        self.queue.put((self.name, mp.current_process().name, self.daemon))


def subclass(ctx):
    queue = mp.Queue()
    workers = [Worker(queue, f"worker {n}") for n in range(2)]
    start(workers)
    return sorted(queue.get(timeout=WAIT) for _ in workers), join(workers)


def talk(conn):
    conn.send(["hello", None])
    conn.send_bytes(conn.recv_bytes()[::-1])
    conn.close()


def pipes(ctx):
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=talk, args=(theirs,))
    process.start()
    theirs.close()
    out = [ours.recv()]
    ours.send_bytes(b"abc")
    out.append(ours.recv_bytes())
    try:
        ours.recv()
    except EOFError:
        out.append("end")
    process.join(WAIT)
    return out, process.exitcode


def say(conn, n):
    conn.send(n)
    conn.close()


def wait_for_many(ctx):
    readers = []
    for n in range(3):
        r, w = ctx.Pipe(duplex=False)
        readers.append(r)
        ctx.Process(target=say, args=(w, n)).start()
        w.close()
    out = []
    while readers:
        for r in connection.wait(readers, WAIT):
            try:
                out.append(r.recv())
            except EOFError:
                readers.remove(r)
    return sorted(out)


def change(a_dict, a_list, namespace, n):
    a_dict[n] = str(n)
    a_list.append(n)
    namespace.x += 1


def manager(ctx):
    with ctx.Manager() as m:
        a_dict, a_list, namespace, around = m.dict(), m.list([9]), m.Namespace(x=0), m.dict({"in": m.list()})
        for n in range(3):
            run(ctx, change, a_dict, a_list, namespace, n)
        around["in"].append(1)
        return sorted(a_dict.items()), a_list[:], namespace.x, around["in"][:], str(a_list), len(a_dict)


def executor(ctx):
    with ProcessPoolExecutor(2, mp_context=ctx, initializer=keep, initargs=(1, 2)) as pool:
        futures = {pool.submit(square, n): n for n in range(4)}
        out = sorted((futures[f], f.result()) for f in as_completed(futures))
        bad = pool.submit(square, None)
        return out, list(pool.map(add, [1, 2], [3, 4], chunksize=2)), type(bad.exception(WAIT)).__name__


def executor_with_queue(ctx):
    queue = ctx.Queue()
    with ProcessPoolExecutor(2, mp_context=ctx, initializer=keep, initargs=(queue,)) as pool:
        list(pool.map(put_given, range(4)))
    return sorted(queue.get(timeout=WAIT) for _ in range(4))


def in_phases(barrier, array, i):
    array[i] = 1
    barrier.wait(WAIT)
    array[i] = sum(array[:3])
    barrier.wait(WAIT)


def barrier(ctx):
    b, array = ctx.Barrier(3), ctx.Array(ctypes.c_double, 3)
    processes = start([ctx.Process(target=in_phases, args=(b, array, i)) for i in range(3)])
    exitcodes = join(processes)
    return all(x >= 3 for x in array), exitcodes


def await_event(event, condition, ready, queue):
    event.wait(WAIT)
    with condition:
        condition.wait_for(lambda: ready.value, WAIT)
    queue.put("went")


def event_and_condition(ctx):
    event, condition, ready, queue = ctx.Event(), ctx.Condition(), ctx.Value("b", 0), ctx.SimpleQueue()
    p = ctx.Process(target=await_event, args=(event, condition, ready, queue))
    p.start()
    event.set()
    with condition:
        ready.value = 1
        condition.notify_all()
    out = queue.get()
    p.join(WAIT)
    return out, p.exitcode


def limited(semaphore, active, most):
    with semaphore:
        with active.get_lock():
            active.value += 1
            most.value = max(most.value, active.value)
        time.sleep(0.02)
        with active.get_lock():
            active.value -= 1


def semaphore(ctx):
    s, active, most = ctx.Semaphore(2), ctx.Value("i", 0), ctx.Value("i", 0)
    exitcodes = join(start([ctx.Process(target=limited, args=(s, active, most)) for _ in range(4)]))
    return most.value <= 2, active.value, exitcodes


def log_into(queue, level):
    root = logging.getLogger()
    root.handlers[:] = [logging.handlers.QueueHandler(queue)]
    root.setLevel(level)
    logging.getLogger("child").info("from %s", mp.current_process().name)


def logs(ctx):
    queue, found = ctx.Queue(), []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    listener = logging.handlers.QueueListener(queue, Handler())
    listener.start()
    p = ctx.Process(target=log_into, args=(queue, logging.INFO), name="c1")
    p.start()
    p.join(WAIT)
    listener.stop()
    return found


class Maths:
    def __init__(self):
        self.total = 0

    def add(self, x):
        self.total += x
        return self.total


class MyManager(BaseManager):
    pass


MyManager.register("Maths", Maths)
JOBS = []


def get_jobs():
    return JOBS


class Server(BaseManager):
    pass


Server.register("jobs", callable=get_jobs)


def custom_manager(ctx):
    with MyManager(ctx=ctx) as m:
        maths = m.Maths()
        out = [maths.add(1), maths.add(2)]
    server = Server(address=("127.0.0.1", 0), authkey=b"key", ctx=ctx)
    server.start()
    client = Server(address=server.address, authkey=b"key")
    client.connect()
    client.jobs().append("job")
    out += [str(client.jobs()), len(client.jobs()._getvalue())]
    server.shutdown()
    return out


def call_home(address, key):
    with connection.Client(address, authkey=key) as c:
        c.send({"a": 1})
        c.send(c.recv() + 1)


def listener(ctx):
    with connection.Listener(("127.0.0.1", 0), authkey=b"k") as server:
        processes = start([ctx.Process(target=call_home, args=(server.address, b"k"))])
        with server.accept() as c:
            out = [c.recv()]
            c.send(4)
            out.append(c.recv())
        return out, join(processes)


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_double)]


def modify(n, x, s, points):
    n.value **= 2
    x.value **= 2
    s.value = s.value.upper()
    for p in points:
        p.x **= 2


def ctypes_of_all(ctx):
    lock = ctx.Lock()
    n, x = ctx.Value("i", 7), ctx.Value(ctypes.c_double, 0.5, lock=False)
    s, points = ctx.Array("c", b"hello", lock=lock), ctx.Array(Point, [(1.5, 2), (3, 4)], lock=lock)
    run(ctx, modify, n, x, s, points)
    return n.value, x.value, s.value, [(p.x, p.y) for p in points]


def write_shared(name, listed):
    block = shared_memory.SharedMemory(name=name)
    block.buf[:3] = b"abc"
    block.close()
    listed[0] = "new"


def shared_blocks(ctx):
    with SharedMemoryManager(ctx=ctx) as m:
        block, listed = m.SharedMemory(16), m.ShareableList(["old", 1, None])
        run(ctx, write_shared, block.name, listed)
        return bytes(block.buf[:3]), list(listed)


def end(how):
    if how == "raise":
        raise ValueError("expected")
    if how == "exit":
        sys.exit(3)
    if how == "text":
        sys.exit("bye")
    if how == "os":
        os._exit(4)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def exits(ctx):
    out = []
    for how in ("raise", "exit", "text", "os", "kill", "none"):
        out += join(start([ctx.Process(target=end, args=(how,))]))
    process = ctx.Process(target=time.sleep, args=(WAIT,))
    process.start()
    process.terminate()
    return out, join([process]), process.is_alive()


def pool_in_process(queue, method):
    with mp.get_context(method).Pool(1) as pool:
        queue.put(pool.map(square, [2]))


def nested(ctx):
    queue = ctx.Queue()
    p = ctx.Process(target=pool_in_process, args=(queue, ctx.get_start_method()))
    p.start()
    out = queue.get(timeout=WAIT)
    p.join(WAIT)
    with ProcessPoolExecutor(1, mp_context=ctx) as pool:
        return out, pool.submit(child_of_worker, ctx.get_start_method()).result(WAIT)


def child_of_worker(method):
    ctx = mp.get_context(method)
    r, w = ctx.Pipe(False)
    p = ctx.Process(target=say, args=(w, 5))
    p.start()
    out = r.recv()
    p.join(WAIT)
    return out


def rows(n):
    return (list(range(i)) for i in range(n))


def streaming(ctx):
    with ctx.Pool(2, maxtasksperchild=2) as pool:
        return sum(pool.imap_unordered(sum, rows(20), chunksize=3)), list(pool.imap(len, rows(5)))


def from_threads(ctx):
    queue, out = ctx.Queue(3), []
    p = ctx.Process(target=fill, args=(queue, 20))
    p.start()
    threads = [threading.Thread(target=take, args=(queue, out)) for _ in range(2)]
    start(threads)
    for thread in threads:
        thread.join(WAIT)
    return sorted(out), join([p]), queue.empty()


def take(queue, out):
    for _ in range(10):
        out.append(queue.get(timeout=WAIT))


def fill(queue, n):
    for i in range(n):
        queue.put(i)


def passed_on(ctx):
    """A queue, an event and a connection inside other objects, and through another process."""
    queue, event = ctx.Queue(), ctx.Event()
    r, w = ctx.Pipe(False)
    p = ctx.Process(target=pass_on, args=({"q": queue, "in": [event, (w,)]}, ctx.get_start_method()))
    p.start()
    w.close()
    out = [queue.get(timeout=WAIT), event.wait(WAIT), r.recv()]
    p.join(WAIT)
    return out


def pass_on(box, method):
    p = mp.get_context(method).Process(target=use_box, kwargs={"box": box})
    p.start()
    p.join(WAIT)


def use_box(box):
    box["in"][0].set()
    box["in"][1][0].send("sent")
    box["q"].put("put")


IDIOMS = [
    pool_with_queue,
    pool_with_shared_state,
    pool_with_manager_queue,
    pool_calls,
    producer_consumer,
    joinable,
    subclass,
    pipes,
    wait_for_many,
    manager,
    executor,
    executor_with_queue,
    barrier,
    event_and_condition,
    semaphore,
    logs,
    custom_manager,
    listener,
    ctypes_of_all,
    shared_blocks,
    exits,
    nested,
    streaming,
    from_threads,
    passed_on,
]


def main():
    mp.set_start_method(sys.argv[1])
    ctx = mp.get_context(sys.argv[1])
    for idiom in IDIOMS:
        try:
            result = idiom(ctx)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        print(idiom.__name__, result, flush=True)


if __name__ == "__main__":
    main()
