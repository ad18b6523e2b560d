from multiprocessing.synchronize import *
from multiprocessing.synchronize import (
    Barrier as Barrier,
    SemLock as SemLock,
)
