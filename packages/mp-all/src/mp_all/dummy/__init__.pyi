from multiprocessing.dummy import *
from multiprocessing.dummy import (
    Array as Array,
    DummyProcess as DummyProcess,
    Namespace as Namespace,
    Value as Value,
    shutdown as shutdown,
)
