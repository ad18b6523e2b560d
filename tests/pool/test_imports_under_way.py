"""A pool that is used while a module is being imported answers, also with objects of that module."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.scripts import run_python, succeeded

# A module that uses its pool when it is imported, and only in the program's own process.
MODULE = """
    import concurrent.futures
    import multiprocessing
    import threading
    import mp_all as mp
    import numpy as np

    class Point:
        def __init__(self, x, values=None):
            self.x, self.values = x, values

    class Wrong(Exception):
        pass

    def x_of(point):
        return point.x

    def point(x):
        return Point(x)

    def points(x):
        return [Point(x) for _ in range(20)] + [np.full(100_000, x)]

    def kind_of(x):
        return Point

    def wrong(x):
        raise Wrong(x)

    def of_a_submodule(x):
        import package.inner
        return package.inner.Inner(x)

    def below(x):
        return Below(x)

    def seen(value):
        called.append(value)
        has_called.set()

    called, has_called, answers = [], threading.Event(), []
    CONTEXT = mp.get_context("METHOD")
    if multiprocessing.parent_process() is None:
        BODY

    class Below:
        def __init__(self, x):
            self.x = x
"""

PROGRAM = """
    import faulthandler
    import sys
    faulthandler.dump_traceback_later(15, exit=True)
    sys.path.insert(0, {folder!r})
    if __name__ == "__main__":
        import package.outer
        print(package.outer.answers)
        package.outer.finish()
"""

WITH_POOL = """
        with CONTEXT.Pool(1) as pool:
            USE
"""

USES = {
    "apply": "answers.append(pool.apply(point, (1,)).x)",
    "map": "answers.append([each.x for each in pool.map(point, range(7))])",
    "map of single tasks": "answers.append([each.x for each in pool.map(point, range(7), chunksize=1)])",
    "starmap": "answers.append([each.x for each in pool.starmap(point, [(n,) for n in range(3)])])",
    "imap": "answers.append([each.x for each in pool.imap(point, range(3))])",
    "imap of a generator": "answers.append([each.x for each in pool.imap(point, (n for n in range(30)))])",
    "map of objects": "answers.append(pool.map(x_of, [Point(n) for n in range(5)]))",
    "imap of objects of a generator": "answers.append(list(pool.imap(x_of, (Point(n) for n in range(30)))))",
    "a task that cannot be pickled": """
            try:
                pool.apply(point, (Point(open(__file__)),))
            except (AttributeError, TypeError) as error:
                answers.append("pickle" in str(error))""",
    "imap of chunks": "answers.append([each.x for each in pool.imap(point, range(7), chunksize=2)])",
    "imap_unordered": "answers.append(sorted(each.x for each in pool.imap_unordered(point, range(3))))",
    "a result that came before it was asked for": "one = pool.apply_async(point, (1,)); pool.apply(abs, (1,)); "
    "one.wait(); answers.append((one.ready(), one.successful(), one.get().x))",
    "many objects and an array": "got = pool.apply(points, (5,)); answers.append((got[7].x, int(got[-1].sum())))",
    "a class": "answers.append(pool.apply(kind_of, (1,)) is Point)",
    "an exception": """
            try:
                pool.apply(wrong, (3,))
            except Wrong as error:
                answers.append(repr(error))""",
    "workers that are replaced": """
            with CONTEXT.Pool(1, maxtasksperchild=1) as other:
                answers.append([other.apply(abs, (-n,)) for n in range(4)] + [other.apply(point, (5,)).x])""",
    "a callback": "result = pool.apply_async(point, (1,), callback=seen); answers.append(result.get().x)",
    "a lazy starmap of a recipe": """
            from multiprocessing import pool as standard
            result = standard.IMapIterator(pool)
            tasks = [(result._job, n, point, (n,), {}) for n in range(3)]
            pool._taskqueue.put((tasks, result._set_length))
            answers.append(pool.apply(abs, (-1,)))""",
    "an object of a module that was not imported": "got = pool.apply(of_a_submodule, (4,)); answers.append(got.x)",
    "an object of a class that is not there yet": """
            try:
                pool.apply(below, (1,))
            except (AttributeError, NameError) as error:  # the second is of a forked worker
                answers.append("Below" in str(error))""",
    "a result that is dropped": "pool.apply_async(points, (5,)).wait(0); answers.append(pool.apply(abs, (-1,)))",
}

EXECUTOR_USES = {
    "submit": "answers.append(executor.submit(point, 1).result().x)",
    "executor.map": "answers.append([each.x for each in executor.map(point, range(5))])",
    "executor.map of chunks": "answers.append([each.x for each in executor.map(point, range(5), chunksize=2)])",
    "as_completed": "done = concurrent.futures.as_completed([executor.submit(point, 1)]); "
    "answers += [one.result().x for one in done]",
    "exception": "answers.append(repr(executor.submit(wrong, 3).exception()))",
    "no exception": "answers.append(repr(executor.submit(point, 3).exception()))",
    "done callback": "one = executor.submit(point, 1); one.add_done_callback(lambda one: seen(one.result())); "
    "answers.append(one.result().x); answers.append(executor.submit(abs, -1).result())",
}

FINISH = {
    "a callback": "has_called.wait(); assert [each.x for each in called] == [1]",
    "done callback": "has_called.wait(); assert [each.x for each in called] == [1]",
}

EXPECTED = {
    "apply": [1],
    "map": [[*range(7)]],
    "map of single tasks": [[*range(7)]],
    "starmap": [[0, 1, 2]],
    "imap": [[0, 1, 2]],
    "imap of a generator": [[*range(30)]],
    "map of objects": [[*range(5)]],
    "imap of objects of a generator": [[*range(30)]],
    "a task that cannot be pickled": [True],
    "imap of chunks": [[*range(7)]],
    "imap_unordered": [[0, 1, 2]],
    "a result that came before it was asked for": [(True, True, 1)],
    "many objects and an array": [(5, 500_000)],
    "a class": [True],
    "an exception": ["Wrong(3)"],
    "workers that are replaced": [[0, 1, 2, 3, 5]],
    "a callback": [1],
    "a lazy starmap of a recipe": [1],
    "an object of a module that was not imported": [4],
    "an object of a class that is not there yet": [True],
    "a result that is dropped": [1],
    "submit": [1],
    "executor.map": [[*range(5)]],
    "executor.map of chunks": [[*range(5)]],
    "as_completed": [1],
    "exception": ["Wrong(3)"],
    "no exception": ["None"],
    "done callback": [1, 1],
}


@pytest.mark.parametrize("use", EXPECTED)
def test_a_pool_that_is_used_at_import_time_answers(tmp_path: Path, start_method: str, use: str) -> None:
    if use in USES:
        body = WITH_POOL.replace("USE", USES[use].strip())
    else:
        body = WITH_POOL.replace("CONTEXT.Pool(1) as pool", "mp.ProcessPoolExecutor(1, mp_context=CONTEXT) as executor")
        body = body.replace("USE", EXECUTOR_USES[use])
    module = textwrap.dedent(MODULE.replace("BODY", body.strip()).replace("METHOD", start_method))
    module += f"\n\ndef finish():\n    {FINISH.get(use, 'pass')}\n"
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "outer.py").write_text(module)
    inner = "from package.outer import Point\n\nclass Inner(Point):\n    pass\n"
    (tmp_path / "package" / "inner.py").write_text(inner)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM.format(folder=str(tmp_path))))
    done = run_python(str(tmp_path / "program.py"), cwd=tmp_path)
    assert succeeded(done).strip() == str(EXPECTED[use])
