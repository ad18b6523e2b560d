"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

import mp_all as mp


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    """
    Make a pipe from the ranks to the test: (read, write).
    """
    read, write = mp.Pipe(duplex=False)
    yield read, write
    read.close()
    write.close()


@pytest.fixture
def back() -> Iterator[tuple[Connection, Connection]]:
    """
    Make a pipe from the test to the ranks: (read, write).
    """
    read, write = mp.Pipe(duplex=False)
    yield read, write
    read.close()
    write.close()
