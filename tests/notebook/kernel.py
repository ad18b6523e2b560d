"""Run the cells in the list on standard input, as JSON, in a kernel of Jupyter; show what they print."""

from __future__ import annotations

import json
import os
import sys

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

TIMEOUT = 50.0  # seconds


def main() -> None:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # with it, a kernel does not read its descriptors 1 and 2
    manager = KernelManager()
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="this Python", language="python")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        for cell in json.load(sys.stdin):
            reply = client.execute_interactive(cell, timeout=TIMEOUT)
            if reply["content"]["status"] != "ok":
                sys.exit("\n".join(reply["content"]["traceback"]))
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()


if __name__ == "__main__":
    main()
