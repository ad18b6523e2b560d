"""Measure mp-all and its peers in one run: `python -m benchmarks` prints the tables.

A row of the tables is a module in `rows/`, and each measured library is a module in `peers/`. A peer runs in a process
of its own, since the reducers that `mp_all` or `torch` register are global to a process.

    rows, peers  ->  bench, driver  ->  record (docs/performance.json)  ->  table, plots, readme, compare
"""
