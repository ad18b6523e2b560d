"""Run the pipeline once from the command line, with a progress bar, on the given module."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from types import ModuleType

from filters import FILTERS, RADIUS
from grid import Grid
from pipeline import Job, PipelineError, run
from tqdm import tqdm


def add_options(options: argparse.ArgumentParser) -> None:
    """Add the options that a single run and the comparison have in common."""
    options.add_argument("--start", choices=["spawn", "forkserver", "fork"], default="spawn")
    options.add_argument("--workers", type=int, default=max(2, min(8, os.cpu_count() or 2)))
    options.add_argument("--rows", type=int, default=8, help="of tiles")
    options.add_argument("--columns", type=int, default=10, help="of tiles")
    options.add_argument("--size", type=int, default=512, help="pixels along one side of a tile")


def grid_of(options: argparse.Namespace) -> Grid:
    """Return the requested grid; the filter's reach is its halo."""
    return Grid(options.rows, options.columns, options.size, halo=RADIUS)


def main(mp: ModuleType) -> None:
    """Run the pipeline on *mp* and print the outcome as one line of JSON."""
    parser = argparse.ArgumentParser(description="Filter a mosaic of the Hubble deep field, tile by tile.")
    parser.add_argument("--filter", choices=sorted(FILTERS), default="sharpen")
    parser.add_argument("--mosaic", type=Path, default=Path("mosaic.npy"), help="where the result goes")
    add_options(parser)
    options = parser.parse_args()
    grid = grid_of(options)
    job = Job(grid, options.filter, options.workers, options.start, options.mosaic)
    title = f"{mp.__name__}, {job.filter}"
    try:
        # disable=None: no bar without a terminal, as in a log file.
        with tqdm(total=grid.count, unit="tile", desc=title, leave=False, disable=None) as bar:
            outcome = run(mp, job, progress=bar.update)
    except PipelineError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None
    print(json.dumps(outcome._asdict()))
