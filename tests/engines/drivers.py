"""A program that is the driver of ranks on an engine, to be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import mp_all as mp
import mp_nodes as engines
sys.path.insert(0, sys.argv[2])
from node_functions import wait_for_ever
if __name__ == "__main__":
    mp.run(wait_for_ever, (sys.argv[1],), nprocs={nprocs}, engine={engine})
"""


def start_driver(tmp_path: Path, folder: Path, nprocs: int, engine: str) -> subprocess.Popen[bytes]:
    """
    Start a program whose ranks, on the engine of that expression, write their pids into *folder* and wait.
    """
    program = tmp_path / "driver.py"
    program.write_text(PROGRAM.format(nprocs=nprocs, engine=engine))
    command = [sys.executable, str(program), str(folder), str(Path(__file__).parent)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)
