from multiprocessing.heap import *
from multiprocessing.heap import (
    Arena as Arena,
    Heap as Heap,
    rebuild_arena as rebuild_arena,
    reduce_arena as reduce_arena,
)
