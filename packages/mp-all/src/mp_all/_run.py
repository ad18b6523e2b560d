"""The command `mp-all run`: run a program as `mp-all program.py` does, with options before the program."""

from __future__ import annotations

import os
import sys

from mp_all import _runner

USAGE = "usage: mp-all run [--timeline PATH] script.py ... | -m module ... | -c code ... | - ..."
HELP = f"""{USAGE}

Run a program with mp_all in the place of multiprocessing, also in its child processes.

  --timeline PATH   record the run, and write a report of where its time and memory went:
                    .html for a browser, .json for Perfetto; its sentences are also printed
  --help, -h        this text"""


def main(arguments: list[str]) -> int:
    """
    Run the command with *arguments*: the program replaces this process. Return the exit code after --help or a refusal.
    """
    program, report = arguments, None
    if program[:1] in (["--help"], ["-h"]):
        print(HELP)
        return 0
    if program[:1] == ["--timeline"]:
        report, program = "".join(program[1:2]), program[2:]
    elif program and program[0].startswith("--timeline="):
        report, program = program[0].partition("=")[2], program[1:]
    if program[:1] == ["--"]:
        program = program[1:]
    if not _runner.is_program(program):
        what = f"{program[0]}: there is no such file or option" if program else "name a program"
        return _refuse(f"{what}\n{USAGE}")
    if report is not None:
        from mp_core.timeline import timeline

        try:
            os.environ |= {"MP_TIMELINE": timeline(report).path, "MP_TIMELINE_PRINT": "1"}
        except (ValueError, OSError) as error:
            return _refuse(str(error))
    return _runner.run(program, 1 + len(arguments) - len(program))


def _refuse(text: str) -> int:
    print(f"mp-all run: {text}", file=sys.stderr)
    return 2
