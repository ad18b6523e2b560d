"""For type checkers. At run time `import mp_all.queues` is multiprocessing.queues itself."""

from multiprocessing.queues import *
