from multiprocessing.forkserver import *
from multiprocessing.forkserver import (
    ForkServer as ForkServer,
    MAXFDS_TO_SEND as MAXFDS_TO_SEND,
    SIGNED_STRUCT as SIGNED_STRUCT,
    main as main,
    read_signed as read_signed,
    write_signed as write_signed,
)
