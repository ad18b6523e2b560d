from multiprocessing.resource_sharer import *
