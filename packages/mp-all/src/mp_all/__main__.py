"""The command `mp-all`, which is `python -m mp_all` as well: it runs a program, or shows who holds what.

Without arguments it prints the facts for a bug report. How a program is run: `_runner.py`.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

from mp_all import __version__, _runner

#: The modules of the commands; the `main` of each takes the arguments and returns the exit code.
COMMANDS = {name: f"mp_all._{name}" for name in ("demo", "run", "stat", "timeline", "top")}
USAGE = (
    f"usage: mp-all [script.py ... | -m module ... | -c code ... | - ... | {' | '.join(COMMANDS)} | --version | --help]"
)
HELP = f"""{USAGE}

Run a program with mp_all in the place of multiprocessing, also in its child processes, or show who holds
shared memory. `python -m mp_all` is the same command.

  script.py [arguments]    run a script; its options are its own
  -m module [arguments]    run a module
  -c code [arguments]      run code
  - [arguments]            run the program on standard input
  demo                     run one small program on multiprocessing and on mp_all, and compare
  run --timeline PATH ...  run a program, and write a report of where its time and memory went
  stat                     who holds shared memory now; `stat --help` has its options
  timeline recover FOLDER  write that report for a run that was killed
  top                      the same, again and again
  (nothing)                the facts for a bug report
  --print-completion SHELL what completes the commands in bash or zsh: eval "$(mp-all --print-completion bash)"
  --version                the version
  --help, -h               this text"""


def main() -> int:
    """
    Run the command line, and return the exit code. A program replaces this process.

    The code is 2 for an unknown option, and for a file that does not exist, as Python's own is.
    """
    arguments = sys.argv[1:]
    first = arguments[0] if arguments else ""
    if not arguments:
        import_module("mp_all._bug_report").main()
    elif first in COMMANDS:
        return int(import_module(COMMANDS[first]).main(arguments[1:]))
    elif first in ("--help", "-h"):
        print(HELP)
    elif first == "--version":
        print(f"mp-all {__version__}")
    elif first == "--print-completion" and arguments[1:] in (["bash"], ["zsh"]):
        from mp_spawn.command.completion import completion

        print(completion("mp-all", [*COMMANDS, "--help", "--version"], arguments[1]))
    elif _runner.is_program(arguments):
        _runner.run(arguments)
    elif first.startswith("-"):
        print(f"{USAGE}\nmp-all: there is no option {first}; options of a program come after its name", file=sys.stderr)
        return 2
    else:
        print(f"mp-all: {first}: there is no such file, and no such command ({', '.join(COMMANDS)})", file=sys.stderr)
        return 2
    return 0


def run() -> int:
    """Run the command line as a program: a reader that has gone ends it quietly, a full disk with one line."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # It prints names of files and processes.
            sys.stdout.reconfigure(errors="backslashreplace")
        code = main()
        if sys.stdout is not None:  # closed, as by `mp-all stat >&-`
            sys.stdout.flush()
    except OSError as error:
        # What could not be written would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # as in `mp-all | head`
            return 0
        print(f"mp-all: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(run())
