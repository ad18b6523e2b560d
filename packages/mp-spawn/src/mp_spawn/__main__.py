"""Run the command `mp-spawn` as `python -m mp_spawn`."""

from __future__ import annotations

import sys

from mp_spawn.command.main import main

if __name__ == "__main__":
    sys.exit(main())
