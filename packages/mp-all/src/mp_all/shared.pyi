from mp_reductions.shared import *
