from multiprocessing.managers import *
from multiprocessing.managers import (
    BaseListProxy as BaseListProxy,
    DictProxy as DictProxy,
    ListProxy as ListProxy,
    Namespace as Namespace,
    RemoteError as RemoteError,
    Server as Server,
    SharedMemoryServer as SharedMemoryServer,
    ValueProxy as ValueProxy,
)
