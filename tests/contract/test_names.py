"""Every public name of multiprocessing and of its submodules is in mp_all, and but for few the same object."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import pkgutil
import queue
import sys
from types import ModuleType

import pytest
from support.scripts import run_python, succeeded

import mp_all as mp
from mp_core.installation import contexts, queue_functions
from mp_core.sharing import backend
from mp_core.system import settings

# Names that mean something else here, each with the reason.
EXCEPTIONS = {
    "spawn": "the launcher function, as in torch; `import mp_all.spawn` is the module all the same",
    "Pool": "a subclass of the standard pool, whose tasks survive the death of a worker",
    **dict.fromkeys(queue_functions.NAMES, "stand for the type of the queue in annotations"),
}
CHANNELS = settings.channels_enabled() and backend.LIBSHM
if CHANNELS:
    EXCEPTIONS |= dict.fromkeys(contexts.NAMES, "methods of a context whose pipes and queues are channels")
if backend.LIBSHM:
    EXCEPTIONS |= dict.fromkeys(
        ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"),
        "a subclass of the class of the standard library that outlives its holder",
    )
# Modules that exist on every platform's disk and can only be imported on Windows.
WINDOWS_ONLY = {"popen_spawn_win32"}

SUBOURS = sorted(
    module.name.removeprefix("multiprocessing.")
    for module in pkgutil.walk_packages(multiprocessing.__path__, "multiprocessing.")
)
HERE = [name for name in SUBOURS if name not in WINDOWS_ONLY]
OURS = [name for name in HERE if name not in EXCEPTIONS]


def public(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def imported(name: str) -> tuple[ModuleType, ModuleType]:
    return importlib.import_module(f"mp_all.{name}"), importlib.import_module(f"multiprocessing.{name}")


def test_the_walk_finds_what_it_should() -> None:
    assert {"pool", "connection", "managers", "shared_memory", "sharedctypes", "dummy.connection"} <= set(OURS)


def test_the_package_is_pickled_by_name_by_every_cloudpickle() -> None:
    # dask, joblib and Ray pickle a function of the main module with the modules that it uses, each by its cloudpickle.
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(mp)) is mp
    assert pickle.loads(pickle.dumps(mp)) is mp


@pytest.mark.parametrize("name", sorted(set(multiprocessing.__all__) - set(EXCEPTIONS)))
def test_a_name_of_multiprocessing_is_the_same_object(name: str) -> None:
    theirs = getattr(multiprocessing, name)
    # The functions of the package are bound methods of the default context: equal, where not identical.
    assert getattr(mp, name) == theirs
    assert type(getattr(mp, name)) is type(theirs)
    assert name in mp.__all__


def test_every_public_attribute_of_multiprocessing_is_here() -> None:
    for name in HERE:
        importlib.import_module(f"multiprocessing.{name}")
    different = {
        name
        for name in public(multiprocessing)
        if getattr(mp, name, None) is not getattr(multiprocessing, name)
        and getattr(mp, name, None) != getattr(multiprocessing, name)
    }
    assert different == set(EXCEPTIONS)


def test_the_exceptions_have_the_documented_types() -> None:
    assert callable(mp.spawn)
    assert not isinstance(mp.spawn, ModuleType)
    assert isinstance(importlib.import_module("multiprocessing.spawn"), ModuleType)
    assert issubclass(mp.Pool, multiprocessing.pool.Pool)
    assert callable(mp.spawn), "the import of multiprocessing.spawn has replaced mp_all.spawn"


@pytest.mark.parametrize(
    "program", ["import mp_all.spawn", "import mp_all, mp_all.spawn", "import mp_core.spawn, mp_all"]
)
def test_the_module_spawn_is_imported_and_leaves_the_launcher_in_its_place(program: str) -> None:
    program += """
import importlib, multiprocessing.spawn
import mp_all.spawn
from mp_all.spawn import freeze_support, get_executable
assert importlib.import_module("mp_all.spawn") is multiprocessing.spawn is importlib.import_module("mp_core.spawn")
assert get_executable is multiprocessing.spawn.get_executable
assert mp_all.spawn is __import__("mp_spawn").spawn
"""
    assert succeeded(run_python("-c", program)) == ""


@pytest.mark.parametrize("name", OURS)
def test_a_submodule_is_the_same_module(name: str) -> None:
    ours, theirs = imported(name)
    assert ours is theirs
    assert sys.modules[f"mp_all.{name}"] is theirs
    assert theirs.__name__ == f"multiprocessing.{name}"
    assert theirs.__spec__ is not None
    assert theirs.__spec__.name == f"multiprocessing.{name}"


@pytest.mark.parametrize("name", [n for n in OURS if "." not in n])
def test_a_submodule_is_an_attribute(name: str) -> None:
    ours, theirs = imported(name)
    assert getattr(mp, name) is theirs is ours


@pytest.mark.parametrize("name", OURS)
def test_a_submodule_is_the_first_import_of_a_fresh_interpreter(name: str) -> None:
    program = f"import mp_all.{name} as m, sys; assert m is sys.modules['multiprocessing.{name}'], m"
    assert succeeded(run_python("-c", program)) == ""


def test_names_are_imported_from_submodules_in_a_fresh_interpreter() -> None:
    program = """
from mp_all.managers import BaseManager
from mp_all.pool import Pool, ThreadPool
from mp_all.connection import Client, Listener, wait
from mp_all.dummy import Process as Thread
from mp_all import pool, shared_memory, sharedctypes
import multiprocessing.managers, multiprocessing.pool, multiprocessing.shared_memory
assert BaseManager is multiprocessing.managers.BaseManager
assert ThreadPool is multiprocessing.pool.ThreadPool
assert pool is multiprocessing.pool
assert shared_memory.SharedMemory is multiprocessing.shared_memory.SharedMemory
"""
    assert succeeded(run_python("-c", program)) == ""


@pytest.mark.parametrize("name", ["nothing_of_that_name", "pool.nothing", "popen_nothing"])
def test_a_submodule_that_does_not_exist_is_a_clear_error(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.split(".")[-1]):
        importlib.import_module(f"mp_all.{name}")


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        mp.nothing_of_that_name  # noqa: B018


def test_everything_listed_is_there() -> None:
    assert [name for name in mp.__all__ if not hasattr(mp, name)] == []
    assert set(mp.__all__) <= set(dir(mp))


def test_no_name_is_listed_twice() -> None:
    assert sorted(mp.__all__) == sorted(set(mp.__all__))


def test_a_star_import_brings_the_same_names() -> None:
    program = "from mp_all import *; print(Process, Queue, shared, spawn, set_sharing_strategy)"
    assert "Process" in succeeded(run_python("-c", program))


@pytest.mark.parametrize("error", ["ProcessError", "TimeoutError", "AuthenticationError", "BufferTooShort"])
def test_an_exception_of_theirs_is_caught_under_our_name(error: str) -> None:
    with pytest.raises(getattr(mp, error)):
        raise getattr(multiprocessing, error)("said by the standard library")


def test_a_pool_timeout_is_caught_under_our_name() -> None:
    with mp.pool.ThreadPool(1) as pool:
        event = mp.dummy.Event()
        result = pool.apply_async(event.wait)
        with pytest.raises(mp.TimeoutError):
            result.get(timeout=0.01)
        event.set()
        result.get(timeout=10)
        pool.close()
        pool.join()


def test_objects_are_instances_of_both() -> None:
    process = mp.Process()
    assert isinstance(process, multiprocessing.Process)
    assert isinstance(multiprocessing.Process(), mp.Process)
    assert isinstance(mp.current_process(), multiprocessing.process.BaseProcess)
    ends = mp.Pipe()
    for end in ends:
        assert isinstance(end, multiprocessing.connection.Connection)
        end.close()


@pytest.mark.parametrize("method", mp.get_all_start_methods())
def test_contexts_are_the_same_objects_or_subclasses(method: str) -> None:
    ours, theirs = mp.get_context(method), multiprocessing.get_context(method)
    assert isinstance(ours, type(theirs))
    assert (ours is theirs) == (not CHANNELS)
    assert ours.get_start_method() == method
    assert ours.get_context() is ours


def test_the_start_method_is_one_for_both() -> None:
    program = """
import multiprocessing, mp_all
mp_all.set_start_method("spawn")
assert multiprocessing.get_start_method() == mp_all.get_start_method() == "spawn"
assert mp_all.get_context().get_start_method() == "spawn"
"""
    assert succeeded(run_python("-c", program)) == ""


def test_a_pool_of_a_context_is_ours_and_a_pool_of_the_standard_library(ctx) -> None:
    with ctx.Pool(1) as pool:
        assert type(pool) is mp.Pool
        assert isinstance(pool, multiprocessing.pool.Pool)
        assert pool._ctx is ctx
        assert pool.apply(abs, (-1,)) == 1


def test_a_pool_of_the_default_context_is_ours() -> None:
    with mp.get_context(None).Pool(1) as pool:
        assert type(pool) is mp.Pool


def test_a_queue_of_a_context_is_a_queue_of_the_other(ctx) -> None:
    ours = ctx.Queue()
    assert isinstance(ours, type(multiprocessing.get_context(ctx.get_start_method()).Queue(1)))
    with pytest.raises(queue.Empty):
        ours.get_nowait()
    ours.close()
    ours.join_thread()


def test_importing_a_package_other_than_mp_all_registers_nothing() -> None:
    program = """
from multiprocessing.reduction import ForkingPickler
import numpy, mp_core, mp_reductions
assert numpy.ndarray not in ForkingPickler._extra_reducers
assert numpy.ndarray not in ForkingPickler(__import__("io").BytesIO()).dispatch_table
mp_reductions.init_reductions()
assert numpy.ndarray in ForkingPickler(__import__("io").BytesIO()).dispatch_table
"""
    assert succeeded(run_python("-c", program)) == ""


def test_mp_core_works_without_numpy() -> None:
    program = """
import sys
sys.modules["numpy"] = None
import mp_core
memoryview(mp_core.Block(10))[0] = 1
"""
    assert succeeded(run_python("-c", program)) == ""
