"""Events that go wrong in a pool, such as a killed worker, in the pools of several libraries.

    python -m benchmarks.comparison.killed_task stdlib      one event in one library
    python -m benchmarks.comparison                         all of them, as the table of docs/pool.md

An event is a module of this folder, a library is a class of `libraries.py`. Each runs in a process of its own, and what
has not ended after `LIMIT` seconds hangs.
"""
