from multiprocessing.sharedctypes import *
from multiprocessing.sharedctypes import (
    Synchronized as Synchronized,
    SynchronizedArray as SynchronizedArray,
    SynchronizedBase as SynchronizedBase,
    SynchronizedString as SynchronizedString,
)
