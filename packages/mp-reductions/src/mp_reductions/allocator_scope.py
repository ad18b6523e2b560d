"""Scopes of the shared allocator, in which NumPy allocates arrays in shared memory.

Note [Where a scope is in force]
--------------------------------
NumPy keeps its allocator in a context variable. So a scope is in force in the thread, or the asyncio task, that entered
it, in tasks created inside it, and nowhere else. A new thread begins with NumPy's own allocator, which is why
`install_shared_allocator` replaces the functions behind that one.

Scopes need not end in the order in which they began: two generators can each be suspended inside a scope. So each
context has a tuple of its open scopes, each with the handler that was in force outside. A scope that ends in the middle
passes its handler to the next one. A scope that ends in another context (a generator that was collected elsewhere) is
not found there, and changes nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from mp_core.memory.block import Block
from mp_core.system import settings
from mp_reductions import _functions

F = TypeVar("F", bound=Callable[..., Any])

ever = False
"""Whether NumPy may have allocated arrays of this process in shared memory."""


class _Open(NamedTuple):
    scope: shared_allocator
    outside: Any


_open: ContextVar[tuple[_Open, ...]] = ContextVar("mp_shared_allocator", default=())


class shared_allocator:
    """
    Let NumPy allocate every array of more than 32 KiB in shared memory, inside ``with shared_allocator():``.

    That includes results of arithmetic, `numpy.load`, `numpy.concatenate` and the columns of a DataFrame, all of them
    plain `numpy.ndarray`. Sending such an array, or a view of it, copies nothing, and both sides see each other's
    writes. The arrays outlive the scope. Smaller arrays are private and travel in the message, as do arrays of Python
    objects.

    It is in force in this thread or asyncio task, and in tasks created inside. As a decorator it works on functions,
    coroutine functions and generator functions; a decorated generator is inside the scope while it runs and outside
    while its caller runs (a ``with`` around a ``yield`` stays in force in the caller, as every context variable does).

    If shared memory is exhausted, NumPy allocates in private memory, and sending such arrays copies them.

    See Also
    --------
    install_shared_allocator : the same for a whole process; works as the initializer of a pool.

    Examples
    --------
    >>> with mp.shared_allocator():
    ...     a = np.arange(10_000) * 2.0
    >>> mp.is_shared(a), mp.is_shared(a[::2])
    (True, True)
    """

    def __enter__(self) -> shared_allocator:
        global ever
        ever = True
        _open.set((*_open.get(), _Open(self, _functions.get_handler())))
        _functions.set_handler(_functions.shared_handler())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scopes = list(_open.get())
        for i in reversed(range(len(scopes))):
            if scopes[i].scope is self:
                break
        else:
            return  # the scope began in another context
        outside = scopes.pop(i).outside
        if i < len(scopes):
            scopes[i] = _Open(scopes[i].scope, outside)
        else:
            _functions.set_handler(outside)
        _open.set(tuple(scopes))

    def __call__(self, function: F) -> F:
        # inspect.iscoroutinefunction and its siblings inspect the wrapper, so each kind has a wrapper of its kind.
        wrap = next((w for is_kind, w in _KINDS if is_kind(function)), _wrap_function)
        return cast(F, functools.wraps(function)(wrap(function)))


def _wrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with shared_allocator():
            return function(*args, **kwargs)

    return wrapper


def _wrap_coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with shared_allocator():
            return await function(*args, **kwargs)

    return wrapper


def _wrap_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step, value = generator.send, None
        while True:
            try:
                with shared_allocator():
                    result = step(value)
            except StopIteration as stop:
                return stop.value
            try:
                step, value = generator.send, (yield result)
            except GeneratorExit:
                with shared_allocator():
                    generator.close()
                raise
            except BaseException as error:
                step, value = generator.throw, error

    return wrapper


def _wrap_async_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step, value = generator.asend, None
        while True:
            try:
                with shared_allocator():
                    result = await step(value)
            except StopAsyncIteration:
                return
            try:
                step, value = generator.asend, (yield result)
            except GeneratorExit:
                with shared_allocator():
                    await generator.aclose()
                raise
            except BaseException as error:
                step, value = generator.athrow, error

    return wrapper


_KINDS: list[tuple[Callable[[Any], bool], Callable[..., Any]]] = [
    (inspect.isasyncgenfunction, _wrap_async_generator),
    (inspect.iscoroutinefunction, _wrap_coroutine),
    (inspect.isgeneratorfunction, _wrap_generator),
]


def install_shared_allocator() -> None:
    """
    Let NumPy allocate every array of more than 32 KiB in shared memory from now on, in all threads of this process.

    It takes no arguments, so you can pass it as the *initializer* of a pool: then results return without a copy.
    ``MP_SHARED_ALLOCATOR=1`` in the environment calls it on import. A context with another allocator keeps that one.
    Calling it again does nothing.

    Examples
    --------
    >>> mp.install_shared_allocator()
    >>> mp.is_shared(np.ones(10_000))
    True
    >>> mp.uninstall_shared_allocator()
    """
    global ever
    ever = True
    _functions.replace_default_handler(True)


def uninstall_shared_allocator() -> None:
    """
    Let NumPy allocate in private memory again.

    Arrays in shared memory stay there; open scopes stay open.

    Examples
    --------
    >>> mp.uninstall_shared_allocator()
    >>> mp.is_shared(np.ones(10_000))
    False
    """
    if ever:
        _functions.replace_default_handler(False)


def block_of(owner: np.ndarray[Any, Any]) -> Block | None:
    """Return the block that NumPy allocated *owner* in, or None; `sharing.find_block` handles views."""
    if not ever or owner.nbytes == 0:
        return None
    return _functions.block_at(owner)


if settings.shared_allocator():
    install_shared_allocator()
