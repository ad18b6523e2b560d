"""A program that asks fifty questions about what it is, and writes the answers: see test_a_rank_is_the_program.py."""

at_the_first_line = sorted(globals())

import sys  # noqa: E402

imported = [name for name in ("multiprocessing", "mp_core", "mp_spawn", "numpy") if name in sys.modules]

import os  # noqa: E402

descriptors = []
inherited = []
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    if os.path.exists(f"/proc/self/fd/{name}"):  # that of the listing does not
        descriptors.append(int(name))
        inherited += [int(name)] if os.get_inheritable(int(name)) else []

frame = sys._getframe().f_back
below = set()
while frame is not None:
    below.add(os.path.basename(frame.f_code.co_filename))
    frame = frame.f_back

import atexit  # noqa: E402
import concurrent.futures  # noqa: E402
import faulthandler  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import pickle  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import weakref  # noqa: E402
from multiprocessing import shared_memory  # noqa: E402

METHODS = ("fork", "spawn", "forkserver")
to_be_flushed = None


class Point:
    """An object of the program's own class."""

    def __init__(self, x):
        self.x = x


def doubled(point):
    return Point(2 * point.x)


def describe_child(_):
    main = sys.modules["__main__"]
    parent = multiprocessing.parent_process()
    names = [main.__name__, os.path.basename(main.__file__), __name__, Point.__module__]
    return [*names, sys.argv[1:], parent is not None]


class Answers:
    """The answers, one in each line of a file."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.pid = os.getpid()

    def add(self, question, answer, write=os.write, dumps=json.dumps, getpid=os.getpid):
        if getpid() == self.pid:
            write(self.fd, (dumps([question, answer], default=str) + "\n").encode())

    def of(self, question, ask):
        """Add what *ask* returns, or the type of its exception."""
        try:
            self.add(question, ask())
        except Exception as error:
            self.add(question, f"{type(error).__name__}: {error}")


class Destroyed:
    """An object that the end of the interpreter destroys."""

    def __init__(self, answers):
        self.answers = answers

    def __del__(self, write=os.write):
        write(self.answers.fd, b'["a global object is destroyed", true]\n')


def ask_names(answers):
    main = sys.modules["__main__"]
    answers.add("__name__", __name__)
    answers.of("globals() are those of __main__", lambda: vars(main) is globals())
    answers.of("__mp_main__ is __main__", lambda: sys.modules["__mp_main__"] is main)
    answers.add("names at the first line", at_the_first_line)
    answers.of("name of __spec__", lambda: getattr(__spec__, "name", None))
    answers.add("__package__", __package__)
    answers.add("type of __loader__", type(__loader__).__name__)
    answers.add("__doc__", __doc__)
    answers.add("type of __builtins__", type(__builtins__).__name__)
    answers.add("module of a class", Point.__module__)
    answers.add("imported at the first line", imported)
    answers.add("files of the frames below", sorted(below))


def ask_paths(answers):
    answers.add("__file__", __file__)
    answers.add("sys.argv", sys.argv)
    answers.add("sys.orig_argv", sys.orig_argv[1:])
    answers.add("sys.path[0]", sys.path[0])
    answers.add("rest of sys.path", sys.path[1:])
    answers.add("sys.executable", sys.executable)
    answers.add("sys.flags", list(sys.flags))
    answers.add("sys.warnoptions", sys.warnoptions)
    answers.add("working directory", os.getcwd())
    answers.of("a module beside the program", lambda: __import__("beside").WORD)
    here = os.getcwd()
    os.chdir("/")
    answers.of("source of a function after chdir", lambda: inspect.getsource(doubled))
    answers.of("__file__ after chdir", lambda: os.path.exists(__file__))
    os.chdir(here)


def ask_process(answers):
    process = multiprocessing.current_process()
    answers.add("name of the process", process.name)
    answers.add("daemon", process.daemon)
    answers.add("parent process", multiprocessing.parent_process())
    answers.add("children", multiprocessing.active_children())
    answers.add("start method at first", multiprocessing.get_start_method(allow_none=True))
    answers.of("set_start_method", lambda: multiprocessing.set_start_method("forkserver"))
    multiprocessing.set_start_method(None, force=True)
    answers.add("default start method", multiprocessing.get_start_method())
    answers.add("main thread", [threading.main_thread().name, threading.main_thread().native_id == os.getpid()])
    answers.add("threads", len(os.listdir("/proc/self/task")))
    answers.add("garbage collector", [gc.isenabled(), gc.get_threshold()])
    answers.add("limits", [sys.getrecursionlimit(), sys.getswitchinterval()])
    answers.add("faulthandler", faulthandler.is_enabled())
    answers.add("own process group", os.getpgrp() == os.getpid())
    answers.add("descriptors at the first line", descriptors)
    answers.add("descriptors that a program inherits", inherited)
    with open(os.environ["BEFORE"]) as before:
        answers.add("new variables", sorted(set(os.environ) - set(json.load(before))))


def ask_pickles(answers):
    answers.of("pickle of an object", lambda: pickle.loads(pickle.dumps(Point(3))).x)
    answers.of("pickle by __main__", lambda: b"__main__" in pickle.dumps(Point))
    answers.of("pickle of a lambda", lambda: pickle.dumps(lambda: 1))
    answers.of("type of what comes back", lambda: type(pickle.loads(pickle.dumps(Point(3)))) is Point)


def ask_pools(answers):
    def results(pool):
        return [[type(point) is Point, point.x] for point in pool.map(doubled, [Point(1), Point(2)])]

    for method in METHODS:
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            answers.of(f"Pool by {method}", lambda pool=pool: results(pool))
            answers.of(f"child by {method}", lambda pool=pool: pool.map(describe_child, [0]))
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            answers.of(f"executor by {method}", lambda pool=pool: [point.x for point in pool.map(doubled, [Point(5)])])
    queue = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=lambda: queue.put([process.name, __name__]))
    answers.of("Process of a local function", process.start)
    answers.of("what it put", queue.get)
    process.join()
    answers.add("its exit code", process.exitcode)
    memory = shared_memory.SharedMemory(create=True, size=10)
    answers.of("shared memory", lambda: shared_memory.SharedMemory(memory.name).size >= 10)
    memory.close()
    memory.unlink()
    with multiprocessing.Manager() as manager:
        answers.of("manager", lambda: manager.list([1, 2])[1])


def ask_hooks_and_signals(answers):
    hooks = [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__]
    answers.add("hooks", [*hooks, sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook.__name__])
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGCHLD")
    handlers = [signal.getsignal(getattr(signal, name)) for name in names]
    answers.add("handlers", [getattr(handler, "name", getattr(handler, "__name__", "")) for handler in handlers])
    answers.add("blocked signals", list(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    came = []
    signal.signal(signal.SIGUSR1, lambda *_: came.append(threading.current_thread() is threading.main_thread()))
    os.kill(os.getpid(), signal.SIGUSR1)
    answers.add("a handler is called in the main thread", came)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    answers.add("wake-up descriptor", signal.set_wakeup_fd(-1))


def ask_streams(answers):
    answers.add("standard input", sys.stdin.read())
    answers.add("input of a child", subprocess.run(["cat"], stdout=subprocess.PIPE).stdout.decode())
    streams = (sys.stdin, sys.stdout, sys.stderr)
    answers.add("numbers of the streams", [stream.fileno() for stream in streams])
    answers.add("names of the streams", [[stream.name, stream.mode, stream.isatty()] for stream in streams])
    same = [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__]
    answers.add("the streams are the interpreter's", same)
    answers.add("encodings", [stream.encoding for stream in streams])
    answers.add("errors of encoding", [stream.errors for stream in streams])
    answers.add("writes are buffered by lines", [stream.line_buffering for stream in streams[1:]])


def main(folder, how):
    global destroyed, to_be_flushed
    # At the end of the interpreter, nothing else has these any more.
    answers = Answers(os.path.join(folder, os.environ.get("RANK", "0")))
    if how == "ask":
        for ask in (ask_names, ask_paths, ask_process, ask_pickles, ask_pools, ask_hooks_and_signals, ask_streams):
            ask(answers)
    destroyed = Destroyed(answers)
    to_be_flushed = open(f"{folder}/flushed-{os.environ.get('RANK', '0')}", "w")  # noqa: SIM115
    to_be_flushed.write("to the last byte")

    def pickled():
        return [type(pickle.loads(pickle.dumps(Point(4)))) is Point, sys.modules["__main__"].__name__]

    def last_thread():
        threading.main_thread().join()
        time.sleep(0.2)  # well after the last line
        answers.of("a thread after the last line", pickled)

    threading.Thread(target=last_thread).start()
    atexit.register(lambda: answers.of("a function at exit", pickled))
    atexit.register(lambda: answers.add("the last exception at exit", getattr(sys, "last_type", None)))
    weakref.finalize(Point, answers.add, "a finalizer at exit", True)
    if how == "raise":
        sys.excepthook = lambda kind, error, trace: answers.add(
            "excepthook", [kind.__name__, str(error), inspect.getinnerframes(trace)[-1].function]
        )
        raise ValueError("of the program")
    if how == "leave":
        sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:3])
