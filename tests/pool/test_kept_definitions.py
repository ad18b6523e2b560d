"""Functions of a main module without a file go to each worker once, and are what they are when a task is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scripts import run_python, succeeded

PRELUDE = """if True:
    import functools, os, sys
    import mp_all as mp
    from mp_pool.tasks import function_cache

    def code():
        # Two tasks of one worker have one code object if it has kept the function.
        return os.getpid(), id(sys._getframe(1).f_code)
"""


def said(program: str, start_method: str, **environment: str) -> str:
    return succeeded(run_python("-c", PRELUDE + program, start_method, timeout=120, **environment))


def test_a_worker_keeps_a_definition(start_method: str) -> None:
    program = """
    def f(number):
        return code()

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        pool.apply(f, (0,))  # carries the definition
        kept = {pool.apply(f, (i,)) for i in range(9)} | {*pool.map(f, range(500), chunksize=1)}
        kept |= {*pool.map(f, range(50), chunksize=7), *pool.imap_unordered(f, range(50))}
        print(len(kept))
    with mp.ProcessPoolExecutor(1, mp_context=mp.get_context(sys.argv[1])) as executor:
        executor.submit(f, 1).result()
        print(len({executor.submit(f, 1).result() for _ in range(9)} | {*executor.map(f, range(30))}))
        made = [executor.submit(lambda: code()).result() for _ in range(5)]
        print(len({*made[1:]}))
    """
    assert said(program, start_method) == "1\n1\n1\n"


CHANGES = """
    x, numbers, names = 1, [1], {"a": 1}

    def helper():
        return x

    def f():
        return x

    def g(y=5, *, z=7):
        return helper() + y + z

    def over_a_list():
        return sum(numbers), names["a"], x

    def counts():
        global n
        n += 1
        return n

    def made(value):
        def inner():
            return value
        def change(to):
            nonlocal value
            value = to
        return inner, change

    def wraps(function):
        @functools.wraps(function)
        def wrapper():
            return function() * 10
        return wrapper

    @wraps
    def decorated():
        return x

    def even(k):
        return True if k == 0 else odd(k - 1)

    def odd(k):
        return False if k == 0 else even(k - 1)

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        def thrice(function, *args):
            answers = [pool.apply(function, args) for _ in range(3)]
            assert answers == answers[:1] * 3, answers
            return answers[0]

        assert (thrice(f), thrice(g), thrice(decorated), thrice(even, 6)) == (1, 13, 10, True)
        assert thrice(over_a_list) == (1, 1, 1)
        x = 2
        assert (thrice(f), thrice(g), thrice(decorated)) == (2, 14, 20)
        assert thrice(over_a_list) == (1, 1, 2)
        numbers.append(4)
        names["a"] = 9
        assert thrice(over_a_list) == (5, 9, 2)
        x = 1
        assert (thrice(f), thrice(g)) == (1, 13)
        g.__defaults__, g.__kwdefaults__["z"] = (50,), 70
        assert thrice(g) == 121
        def helper():
            return 1000
        assert thrice(g) == 1120
        def f():
            return "new"
        assert thrice(f) == "new"
        inner, change = made("one")
        assert thrice(inner) == "one"
        change("two")
        assert thrice(inner) == "two"
        def counter():
            count = 0
            def more():
                nonlocal count
                count += 1
                return count
            return more
        assert thrice(counter()) == 1
        others = [made(i)[0] for i in range(3)]
        assert [pool.apply(other) for other in others * 3] == [0, 1, 2] * 3
        n = 0
        assert [pool.apply(counts) for _ in range(4)] == [1, 2, 3, 4]  # as with a file, it is the worker's
        print("right")
"""


def test_a_task_sees_what_its_function_is_made_of_when_it_is_made(start_method: str) -> None:
    assert said(CHANGES, start_method) == "right\n"


def test_a_waiting_task_has_the_globals_of_its_submission(start_method: str) -> None:
    program = """
    x = 0

    def f(number):
        return x

    class Holder:
        def __init__(self, value):
            self.value = value

        def get(self, number):
            return self.value

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        waits = []
        for x in range(5):
            waits += [pool.apply_async(f, (0,)) for _ in range(100)]
        x = -1
        assert [wait.get() for wait in waits] == [number for number in range(5) for _ in range(100)]
        # A bound method has the code of its function, and is another thing.
        print([pool.apply(function, arguments) for _ in range(3) for function, arguments in (
            (Holder.get, (Holder(1), 0)), (Holder(2).get, (0,)),
        )])
    """
    assert said(program, start_method) == "[1, 2, 1, 2, 1, 2]\n"


def test_a_task_behind_one_that_is_pickled_late_has_the_globals_of_its_submission(start_method: str) -> None:
    program = """
    number = 0

    def f(argument):
        return number

    def first(array):
        return array[0]

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        array = mp.shared.ones(1000)
        event = mp.get_context(sys.argv[1]).Event()
        for _ in range(3):
            pool.apply(f, (0,))
        pool.apply_async(event.wait)
        firsts = [pool.apply_async(first, (array,)) for _ in range(100)]  # more than there are references to one array
        found = pool.apply_async(f, (0,))
        number = 5
        event.set()
        print({int(each.get()) for each in firsts}, found.get())
    """
    assert said(program, start_method) == "{1} 0\n"


def test_definitions_that_share_a_global_have_each_its_own_value_of_that(start_method: str) -> None:
    program = """
    import time

    scale = 1

    def double(number):
        return 2 * scale

    def triple(number):
        return 3 * scale

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        for _ in range(500):  # they are kept, and known to be tiny
            pool.apply_async(double, (0,)), pool.apply_async(triple, (0,))
        found = []
        for _ in range(20):
            pool.apply_async(time.sleep, (0.002,))
            scale = 1
            waits = [pool.apply_async(double, (0,)) for _ in range(40)]
            scale = 10
            waits += [pool.apply_async(triple, (0,)) for _ in range(40)]
            found.append([wait.get() for wait in waits])
        print(found == [[2] * 40 + [30] * 40] * 20)
    """
    assert said(program, start_method) == "True\n"


def test_a_message_that_comes_between_changes_nothing(start_method: str) -> None:
    program = """
    x, numbers = 1, [0]

    def f():
        return x

    def carried():
        return x, len(numbers)

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        assert [pool.apply(f) for _ in range(3)] == [1] * 3
        for _ in range(20):
            x = 2
            carrying = pool.apply_async(carried)  # the worker is idle, so it is pickled and sent now
            x = 1
            kept = [pool.apply_async(f) for _ in range(3)]
            assert (carrying.get(), [each.get() for each in kept]) == ((2, 1), [1, 1, 1])
        print("right")
    """
    assert said(program, start_method) == "right\n"


def test_replaced_workers_get_the_definition(start_method: str) -> None:
    program = """
    def f(number):
        return number + 1

    def die():
        import signal
        os.kill(os.getpid(), signal.SIGKILL)

    with mp.get_context(sys.argv[1]).Pool(2, maxtasksperchild=3) as pool:
        assert [pool.apply(f, (i,)) for i in range(20)] == [*range(1, 21)]
        for _ in range(3):
            try:
                pool.apply(die)
            except mp.WorkerLostError as error:
                assert "die" in str(error), error
        assert pool.map(f, range(100), chunksize=1) == [*range(1, 101)]
        print("went on")
    """
    assert said(program, start_method) == "went on\n"


def test_workers_forget_what_is_called_no_more(start_method: str) -> None:
    program = """
    def held():
        return len(function_cache._held)

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        for i in range(200):
            exec(f"def f(): return {i}", globals())
            assert [pool.apply(f) for _ in range(2)] == [i, i]
        print(pool.apply(held) <= 65)
    """
    assert said(program, start_method) == "True\n"


def test_a_function_of_a_program_with_a_file_gets_fresh_globals_in_each_task(tmp_path: Path, start_method: str) -> None:
    (tmp_path / "program.py").write_text(
        PRELUDE
        + """
    n = 0

    def main():
        def local():
            global n
            n += 1
            return n

        with mp.get_context(sys.argv[1]).Pool(1) as pool:
            print([pool.apply(local) for _ in range(4)])
            print(len({pool.apply(lambda: code()) for _ in range(9)}) <= 2)

    if __name__ == "__main__":
        main()
    """
    )
    done = run_python(str(tmp_path / "program.py"), start_method, timeout=60)
    assert succeeded(done) == "[1, 1, 1, 1]\nTrue\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_definition_that_cannot_be_received_fails_each_of_its_tasks(start_method: str) -> None:
    program = """
    import types
    sys.modules["gone"] = module = types.ModuleType("gone")
    module.value = 3

    def f():
        return gone.value

    gone = module
    def ask(pool):
        try:
            return pool.apply(f)
        except Exception as error:
            return type(error).__name__

    with mp.get_context(sys.argv[1]).Pool(1) as pool:
        print({ask(pool) for _ in range(3)} in ({3}, {"ModuleNotFoundError"}, {"ReceiveError"}))
        print(pool.apply(abs, (-3,)))
    """
    assert said(program, start_method) == "True\n3\n"
