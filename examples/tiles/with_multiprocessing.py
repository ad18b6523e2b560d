"""Run the pipeline. The import below is the only line that differs from the other version."""

import multiprocessing as mp

# isort: split
from job import main

if __name__ == "__main__":
    main(mp)
