"""Run the pipeline. The import below is the only line that differs from the other version."""

import mp_all as mp

# isort: split
from job import main

if __name__ == "__main__":
    main(mp)
