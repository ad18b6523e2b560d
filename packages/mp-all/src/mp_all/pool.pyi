from multiprocessing.pool import *
from multiprocessing.pool import (
    ApplyResult as ApplyResult,
    AsyncResult as AsyncResult,
    CLOSE as CLOSE,
    IMapIterator as IMapIterator,
    IMapUnorderedIterator as IMapUnorderedIterator,
    INIT as INIT,
    MapResult as MapResult,
    RUN as RUN,
    TERMINATE as TERMINATE,
)
