"""For type checkers. At run time `import mp_all.shared_memory` is multiprocessing.shared_memory itself."""

from multiprocessing.shared_memory import *
