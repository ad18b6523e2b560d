"""`timeline`, and the command `mp-all timeline`: a picture of a run."""

from __future__ import annotations

import argparse
import sys

from mp_core.timeline import recover, timeline

__all__ = ["main", "timeline"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mp-all timeline", description="Reports of timelines.")
    commands = parser.add_subparsers(dest="command", required=True)
    recovering = commands.add_parser(
        "recover", help="write the report of a run that was killed, from its folder of events"
    )
    recovering.add_argument("folder", help="the folder of events, beside the report: run.html.….events")
    recovering.add_argument("report", nargs="?", help="the report, .html or .json; by default the one of the run")
    options = parser.parse_args(arguments)
    try:
        print(recover(options.folder, options.report))
    except (ValueError, OSError) as error:
        print(f"mp-all: {error}", file=sys.stderr)
        return 2
    return 0
