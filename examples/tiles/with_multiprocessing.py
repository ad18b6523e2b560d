"""Run the pipeline. The import below is the only line in which this file differs from its twin."""

import multiprocessing as mp

# isort: split
from job import main

if __name__ == "__main__":
    main(mp)
