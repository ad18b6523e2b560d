"""Imports: the errors of messages and of memory of other processes, which C opens (`native/mappings.c`)."""

from __future__ import annotations

import logging
from typing import NoReturn

from mp_cuda.driver import at_exit, cuda_driver
from mp_cuda.driver.functions import close_all, set_hooks
from mp_cuda.errors import MpCudaError, ProducerGoneError, StaleHandleError

_log = logging.getLogger("mp_cuda")
IN_CONTEXT = 201
NBYTES_AT = 36  # in a key


def _not_received(count: int) -> NoReturn:
    raise StaleHandleError(
        f"this message was made for {count} receiver{'s' * (count != 1)} and has been received by as many, "
        "or its sender has revoked it; share(obj, receivers=n) makes one for more"
    )


def own_is_gone() -> NoReturn:
    """Raise the error of a message of this process that it has released."""
    raise StaleHandleError("this process sent the array of this message and has released it since")


def _owner(key: bytes) -> int:
    return int.from_bytes(key[:4], "little")


def _owner_is_gone(key: bytes) -> NoReturn:
    nbytes = int.from_bytes(key[NBYTES_AT : NBYTES_AT + 8], "little")
    raise ProducerGoneError(
        f"process {_owner(key)}, which owns the {nbytes} bytes, has ended, and device memory ends with "
        "its process; keep it running until its arrays have arrived (mp_cuda.wait_released)"
    )


def _not_opened(key: bytes, code: int) -> None:
    if code == IN_CONTEXT:
        raise MpCudaError(
            f"the driver takes process {_owner(key)} for this one (error {code}): both have the same pid, in "
            "different containers; run them in one pid namespace (docker run --pid=host or --pid=container:...)"
        )
    cuda_driver.failed("cuIpcOpenMemHandle", code)


def _stays_open(code: int) -> None:
    _log.warning("memory of another process stays open: the driver refuses to close it (%s)", code)


at_exit.register(at_exit.Step.IMPORTS)(close_all)
set_hooks(
    not_received=_not_received,
    own_is_gone=own_is_gone,
    owner_is_gone=_owner_is_gone,
    not_opened=_not_opened,
    stays_open=_stays_open,
)
