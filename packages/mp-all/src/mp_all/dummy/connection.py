"""For type checkers. At run time `import mp_all.dummy.connection` is multiprocessing.dummy.connection itself."""

from multiprocessing.dummy.connection import *
from multiprocessing.dummy.connection import (
    Connection as Connection,
    families as families,
)
