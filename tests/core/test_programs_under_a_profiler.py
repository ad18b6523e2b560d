"""Under a profiler, a tracer or `exec`, where `__main__` is not the program, what a child sends back arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

pytest.importorskip("cloudpickle", reason="definitions travel by cloudpickle")

PROGRAM = """
import sys
import mp_all as mp

class Point:
    def __init__(self, x):
        self.x = x

class Bare:
    pass

def double(x):
    return 2 * x

def work(channel):
    send = channel.put if hasattr(channel, "put") else channel.send
    send(Point(3))
    send([Point(4), {"bare": Bare()}])
    send(double)
    send(Bare)

def check(receive):
    point, (other, bare), function, kind = receive(), receive(), receive(), receive()
    assert type(point) is type(other) is Point and (point.x, other.x) == (3, 4), (point, other)
    assert type(bare["bare"]) is kind is Bare
    assert function(4) == 8

if __name__ == "__main__":
    ctx = mp.get_context(METHOD)
    for make in ctx.Queue, ctx.SimpleQueue, lambda: ctx.Pipe(False):
        made = make()
        reader, writer = made if isinstance(made, tuple) else (made, made)
        process = ctx.Process(target=work, args=(writer,))
        process.start()
        check(reader.get if hasattr(reader, "get") else reader.recv)
        process.join()
        assert process.exitcode == 0
    print("arrived")
"""


def said(folder: Path, start_method: str, how: str, program: str = PROGRAM) -> str:
    path = folder / "profiled.py"
    path.write_text(program.replace("METHOD", repr(start_method)))
    if how == "exec":
        text = f"""
            if __name__ == "__main__":
                names = {{"__name__": "__main__", "__file__": {str(path)!r}}}
                exec(compile(open({str(path)!r}).read(), {str(path)!r}, "exec"), names)
        """
        return succeeded(run_script(folder, text))
    options = {
        "cProfile": ["-m", "cProfile", "-o", str(folder / "profile")],
        "profile": ["-m", "profile", "-o", str(folder / "profile")],
        "trace": ["-m", "trace", "--count", "-C", str(folder / "coverage")],
    }[how]
    return succeeded(run_python(*options, str(path), cwd=folder))


@pytest.mark.parametrize("how", ["cProfile", "profile", "trace", "exec"])
@pytest.mark.timeout(120)
def test_objects_of_the_program_come_back_from_a_child(tmp_path: Path, start_method: str, how: str) -> None:
    assert "arrived\n" in said(tmp_path, start_method, how)


@pytest.mark.timeout(120)
def test_an_object_that_cannot_travel_by_name_is_still_an_error_in_an_ordinary_program(tmp_path: Path) -> None:
    program = """
        import mp_all as mp

        def work(writer):
            try:
                writer.send(lambda: 0)
            except Exception as error:
                writer.send("local object" in str(error))

        if __name__ == "__main__":
            reader, writer = mp.get_context("fork").Pipe(False)
            process = mp.get_context("fork").Process(target=work, args=(writer,))
            process.start()
            print(reader.recv())
            process.join()
    """
    assert succeeded(run_script(tmp_path, program)) == "True\n"


def test_a_function_whose_globals_have_no_name_and_an_array_type_of_ctypes_travel(
    tmp_path: Path, start_method: str
) -> None:
    program = """
        import ctypes, sys
        import mp_all as mp

        names = {}
        exec("def double(numbers): return [2 * number for number in numbers[1]]", names)

        def show(queue, numbers):
            queue.put(names["double"](numbers))

        if __name__ == "__main__":
            ctx = mp.get_context(sys.argv[1])
            queue = ctx.SimpleQueue()
            rows = mp.RawArray(ctypes.c_int * 3, [(1, 2, 3), (4, 5, 6)])
            process = ctx.Process(target=show, args=(queue, rows))
            process.start()
            print(queue.get())
            process.join()
            with ctx.Pool(1) as pool:
                print(pool.apply(names["double"], ([0, [7, 8]],)))
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "[8, 10, 12]\n[14, 16]\n"
