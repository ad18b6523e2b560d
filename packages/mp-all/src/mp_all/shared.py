"""For type checkers. At run time `import mp_all.shared` is mp_reductions.shared itself."""

from mp_reductions.shared import *
