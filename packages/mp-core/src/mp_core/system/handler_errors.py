"""`is_of_handler`: whether an exception comes from a signal handler, and not from the code that it has interrupted.

Code that handles the errors of a user's function, such as `__reduce__`, must let the exception of a handler pass that
has interrupted the function, for instance of a time limit by SIGALRM: it is meant for the caller.
"""

from __future__ import annotations

import sys


def is_of_handler(error: BaseException) -> bool:
    """Tell whether a signal handler has raised *error*; a handler written in C is not recognised."""
    trace = error.__traceback__
    # The frame that has caught it: until Python 3.13 the look below would leave a copy of its variables there, and with
    # it a circle of the exception and its traceback.
    if trace is not None and trace.tb_frame is sys._getframe(1):
        trace = trace.tb_next
    while trace is not None:
        frame = trace.tb_frame
        interrupted = frame.f_back
        if interrupted is not None:
            # A handler gets the frame that it has interrupted, its caller's. By identity: `in` would call the `==` of
            # the program's objects.
            for argument in frame.f_locals.values():
                if argument is interrupted:
                    return True
                if type(argument) is tuple and any(each is interrupted for each in argument):
                    return True
        trace = trace.tb_next
    return False
