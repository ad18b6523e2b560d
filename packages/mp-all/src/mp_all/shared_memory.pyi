from multiprocessing.shared_memory import *
