"""For type checkers. At run time `import mp_all.synchronize` is multiprocessing.synchronize itself."""

from multiprocessing.synchronize import *
from multiprocessing.synchronize import (
    Barrier as Barrier,
    SemLock as SemLock,
)
