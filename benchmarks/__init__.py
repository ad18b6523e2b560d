"""How fast, beside whom: `python -m benchmarks` measures ours and its peers in one run and prints one table.

A row of the table is a module in `rows/`. Whoever is measured is a class in `peers.py`, and runs in a
process of its own, since what `mp_all` or `torch` register for pickling is global to a process.
"""
