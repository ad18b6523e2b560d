"""Two programs that were started separately find one array by its name."""

import os
import subprocess
import sys

import mp_all as mp

READER = """
import sys
import mp_all as mp

frame = mp.shared.named(sys.argv[1])  # its shape and dtype come with it
print(frame.shape, frame.dtype, frame.max())
frame[0, 0] = 255
"""

if __name__ == "__main__":
    name = f"camera {os.getpid()}"
    frame = mp.shared.named(name, (480, 640), "u1", create=True)
    try:
        frame[100, 200] = 42
        # Any other program of this user can do the same, also one that a shell has started.
        reader = subprocess.run([sys.executable, "-c", READER, name], text=True, capture_output=True, timeout=60)
        assert reader.stdout == "(480, 640) uint8 42\n", reader.stderr
        assert frame[0, 0] == 255
        print(f"the other program read {reader.stdout.strip()} and wrote {frame[0, 0]}")
    finally:
        mp.shared.unlink(name)
