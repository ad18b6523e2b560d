from multiprocessing.context import *
from multiprocessing.context import (
    AuthenticationError as AuthenticationError,
    BaseContext as BaseContext,
    BufferTooShort as BufferTooShort,
    DefaultContext as DefaultContext,
    ForkContext as ForkContext,
    ForkProcess as ForkProcess,
    ForkServerContext as ForkServerContext,
    ForkServerProcess as ForkServerProcess,
    Process as Process,
    ProcessError as ProcessError,
    SpawnContext as SpawnContext,
    SpawnProcess as SpawnProcess,
    TimeoutError as TimeoutError,
    assert_spawning as assert_spawning,
    get_spawning_popen as get_spawning_popen,
    set_spawning_popen as set_spawning_popen,
)
