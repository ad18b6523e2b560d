"""The results of pools and executors for type checkers: the standard classes, whose running tasks can be cancelled."""

import concurrent.futures
import multiprocessing.pool
from typing import TypeVar

__all__ = ["AsyncResult", "Future", "IMapIterator", "MapResult"]

T = TypeVar("T")

class AsyncResult(multiprocessing.pool.AsyncResult[T]):
    def cancel(self, running: bool = False) -> bool: ...

class MapResult(multiprocessing.pool.MapResult[T]):
    def cancel(self, running: bool = False) -> bool: ...

class IMapIterator(multiprocessing.pool.IMapIterator[T]):
    def cancel(self, running: bool = False) -> bool: ...

class Future(concurrent.futures.Future[T]):
    def cancel(self, running: bool = False) -> bool: ...
