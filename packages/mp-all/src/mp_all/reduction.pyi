from multiprocessing.reduction import *
from multiprocessing.reduction import (
    ACKNOWLEDGE as ACKNOWLEDGE,
    AbstractReducer as AbstractReducer,
    HAVE_SEND_HANDLE as HAVE_SEND_HANDLE,
)
