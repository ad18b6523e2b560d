"""How fast, beside whom: `python -m benchmarks` measures ours and its peers in one run and prints its tables.

A row of the tables is a module in `rows/`, and whoever is measured is a module in `peers/`. A peer runs in a process
of its own, since what `mp_all` or `torch` register for pickling is global to a process.

    rows, peers  ->  bench, driver  ->  record (docs/performance.json)  ->  table, plots, readme, compare
"""
