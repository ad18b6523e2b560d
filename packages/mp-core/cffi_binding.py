"""Write cffi's binding of libshm: ``python cffi_binding.py INCLUDE OUTPUT``. The header is the interface."""

import re
import sys
from pathlib import Path

import cffi


def interface(include: Path) -> str:
    """Return mpshm.h and the headers that it includes, in order, without preprocessor lines: the rest is for cffi."""
    header = (include / "mpshm.h").read_text()
    parts = [(include / name).read_text() for name in re.findall(r'(?m)^#include "(.+)"', header)]
    return re.sub(r"(?m)^#.*$", "", "".join([*parts, header]))


if __name__ == "__main__":
    ffi = cffi.FFI()
    ffi.cdef(interface(Path(sys.argv[1])))
    ffi.set_source("_libshm", '#include "mpshm.h"')
    ffi.emit_c_code(sys.argv[2])
