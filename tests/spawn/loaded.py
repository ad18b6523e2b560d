"""A rank function in a module that imports only `sys`."""

import sys


def is_loaded(rank: int, name: str) -> bool:
    return name in sys.modules
