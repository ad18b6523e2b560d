"""`python -m mp_all` prints the facts for a bug report; `stat` and `top` after it show who holds what.

With a program after it, it runs that with mp_all in the place of multiprocessing: `_runner.py`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

__all__ = ["main"]

#: The modules of the commands; the `main` of each takes the arguments and returns the exit code.
COMMANDS = {"stat": "mp_all._stat", "top": "mp_all._top"}


def main() -> None:
    """Run the command line of ``python -m mp_all``. A program after it has replaced this process by now."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:]))
    if sys.argv[1:]:
        sys.exit(f"usage: python -m mp_all [{' | '.join(COMMANDS)} | script.py [arguments] | -m module [arguments]]")
    import_module("mp_all._bug_report").main()


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # as in `python -m mp_all | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
