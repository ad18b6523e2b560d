"""`failed_call`: the text of an error of libshm, with the system call that failed."""

from __future__ import annotations

import errno
import os

from mp_core.sharing import backend


def failed_call(error: int) -> str:
    """
    Return the text of an error that has no other, with the system call that failed if libshm has noted it.

    Parameters
    ----------
    error : int
        An errno.

    Returns
    -------
    str
        What failed, and what to do.

    Examples
    --------
    >>> mp_core.sharing.failed_calls.failed_call(2)
    'No such file or directory'
    """
    text, call = os.strerror(error), backend.failed_call(error)
    if call and error in (errno.EPERM, errno.ENOSYS):
        return f"the system refuses the call {call} ({text}); let the sandbox of this process allow it"
    return f"the call {call} failed ({text})" if call else text
