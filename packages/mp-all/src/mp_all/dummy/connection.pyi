from multiprocessing.dummy.connection import *
from multiprocessing.dummy.connection import (
    Connection as Connection,
    families as families,
)
