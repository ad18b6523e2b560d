"""For type checkers. At run time `import mp_all.resource_sharer` is multiprocessing.resource_sharer itself."""

from multiprocessing.resource_sharer import *
