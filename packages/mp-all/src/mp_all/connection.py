"""For type checkers. At run time `import mp_all.connection` is multiprocessing.connection itself."""

from multiprocessing.connection import *
from multiprocessing.connection import (
    Connection as Connection,
    answer_challenge as answer_challenge,
    deliver_challenge as deliver_challenge,
)
