"""For type checkers. At run time `import mp_all.process` is multiprocessing.process itself."""

from multiprocessing.process import *
