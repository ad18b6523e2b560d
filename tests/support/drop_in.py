"""A program written for multiprocessing with only its import changed, and its output with and without shared memory."""

from __future__ import annotations

__all__ = ["EXPECTED", "METHODS", "PROGRAM"]

METHODS = ("fork", "spawn", "forkserver")

PROGRAM = """
    import sys
    import numpy as np
    import mp_all as multiprocessing

    def work(job, results):
        while (item := job.get()) is not None:
            item += 1
            results.put(item)

    def square(a):
        return a * a

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        job, results = multiprocessing.Queue(), multiprocessing.Queue()
        process = multiprocessing.Process(target=work, args=(job, results))
        process.start()
        mine = np.zeros(100_000)
        job.put(mine)
        job.put(mine)
        job.put(mine[:3])
        job.put(None)
        print(results.get(timeout=30).sum(), results.get(timeout=30).sum(), results.get(timeout=30), mine.sum())
        process.join(30)
        with multiprocessing.Pool(2) as pool:
            print([float(a.sum()) for a in pool.map(square, [np.full(5, k) for k in range(4)])])
            print([float(a.sum()) for a in pool.imap(square, [np.full(3000, k) for k in range(4)])])
            try:
                pool.apply(divmod, (1, 0))
            except ZeroDivisionError:
                print("an error of a task arrives")
            pool.close()
            pool.join()
        with multiprocessing.Manager() as manager:
            shared = manager.dict(a=np.arange(3))
            shared["b"] = np.ones(50_000)
            print(shared["a"] + 1, shared["b"].sum())
        print(process.exitcode, multiprocessing.active_children())
"""
EXPECTED = """\
100000.0 100000.0 [1. 1. 1.] 0.0
[0.0, 5.0, 20.0, 45.0]
[0.0, 3000.0, 12000.0, 27000.0]
an error of a task arrives
[1 2 3] 50000.0
0 []
"""
