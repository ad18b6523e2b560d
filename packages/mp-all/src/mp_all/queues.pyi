from multiprocessing.queues import *
