from multiprocessing.util import *
from multiprocessing.util import (
    DEBUG as DEBUG,
    DEFAULT_LOGGING_FORMAT as DEFAULT_LOGGING_FORMAT,
    INFO as INFO,
    LOGGER_NAME as LOGGER_NAME,
    MAXFD as MAXFD,
    NOTSET as NOTSET,
    abstract_sockets_supported as abstract_sockets_supported,
    is_abstract_socket_namespace as is_abstract_socket_namespace,
    spawnv_passfds as spawnv_passfds,
)
