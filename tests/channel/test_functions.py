"""Functions and classes in messages: written and found by their names, as every pickler and unpickler does."""

from __future__ import annotations

import copyreg
import functools
import gc
import importlib
import io
import json
import math
import os.path
import pickle
import pickletools
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import channel_tasks as tasks
import numpy as np
import pytest

from mp_core.sharing import backend


class Holder:
    """Has a function under a name with a dot."""

    @staticmethod
    def static() -> None: ...

    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


def given_up() -> None: ...


GIVEN_UP = given_up


def given_up() -> None: ...  # type: ignore[no-redef]


NAMED = [tasks.echo, Holder.static, Holder.method, os.path.join, json.dumps, math.sin, abs, pickle.dumps, Holder, int]
# Each with what pickle writes for it, or raises.
OTHERS = [lambda: 0, GIVEN_UP, [].append, "".join, dict.fromkeys, type(None)]


@pytest.mark.parametrize("function", NAMED, ids=lambda each: each.__qualname__)
def test_what_has_a_name_needs_no_pickler(function: Callable[..., Any]) -> None:
    for message in (function, (function, (1, 2), {"key": function}), [function] * 3):
        data = backend.plain_data(message)
        assert data is not None
        pickletools.dis(data, out=io.StringIO())  # the standard library finds no mistake in it
        for loads in pickle.loads, backend.plain_loads:
            assert loads(data) == message


@pytest.mark.parametrize("function", OTHERS, ids=lambda each: each.__qualname__)
def test_another_one_is_left_to_the_pickler(function: Callable[..., Any]) -> None:
    assert backend.plain_data(function) is None
    try:
        expected = pickle.loads(pickle.dumps(function))
    except (pickle.PicklingError, AttributeError) as error:
        with pytest.raises(type(error)):
            ForkingPickler.dumps(function)
    else:
        got = ForkingPickler.loads(ForkingPickler.dumps(function))
        assert type(got) is type(expected)


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_functions_and_arrays_arrive_in_one_message(channels: Any, kind: str) -> None:
    requests, answers = getattr(channels, kind)(), getattr(channels, kind)()
    process = channels.Process(target=tasks.echo_queue, args=(requests, answers))
    process.start()
    for message in (abs, [tasks.echo, np.arange(5), tasks.echo, np.ones(100_000)]):
        requests.put(message)
        got = answers.get()
        if callable(message):
            assert got is message
            continue
        assert got[0] is got[2] is tasks.echo
        for i in 1, 3:
            np.testing.assert_array_equal(got[i], message[i])
        del got
    requests.put(None)
    process.join()
    assert process.exitcode == 0
    for queue in requests, answers:
        queue.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """
    A package with a module with a function, imported here.
    """
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("")
    (tmp_path / "a_package" / "a_module.py").write_text("def function(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import a_package.a_module  # type: ignore[import-not-found]

    yield a_package.a_module
    for name in "a_package", "a_package.a_module":
        sys.modules.pop(name, None)


def test_a_module_is_imported_where_it_is_missing(module: types.ModuleType) -> None:
    data = backend.plain_pickle([np.ones(100_000), module.function])
    for name in "a_package", "a_package.a_module":
        del sys.modules[name]
    array, function = backend.loads(data)
    assert function is not module.function
    assert function is sys.modules["a_package.a_module"].function
    assert array.sum() == 100_000


@pytest.mark.parametrize("at", [0, 1])
def test_a_function_that_is_not_there_is_an_error_and_frees_the_arrays(module: types.ModuleType, at: int) -> None:
    message: list[Any] = [np.ones(100_000), np.ones(100_000)]
    message.insert(at, module.function)
    data = backend.plain_pickle(message)
    del module.function
    with pytest.raises(AttributeError, match="function"):
        backend.loads(data)
    gc.collect()  # and the leak check finds no block


def test_a_module_that_cannot_be_imported_is_an_error(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = backend.plain_pickle([np.ones(100_000), module.function])
    for name in "a_package", "a_package.a_module":
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(ModuleNotFoundError, match="a_package"):
        backend.loads(data)


def test_an_error_of_a_modules_own_lookup_is_raised(module: types.ModuleType) -> None:
    def lookup(name: str) -> Any:
        raise ZeroDivisionError(name)

    function = module.function
    del module.function
    module.__getattr__ = lookup  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        backend.plain_data(function)


def _reduced(function: Callable[..., Any]) -> Any:
    return int, ("7",)


def _override(pickler: Any, thing: Any) -> Any:
    return _reduced(thing) if callable(thing) and thing is not int else NotImplemented


def _with_reducer(pickler: Any, *args: Any) -> None:
    _INIT(pickler, *args)
    pickler.dispatch_table[types.BuiltinFunctionType] = _reduced


_INIT: Any = ForkingPickler.__init__
# Each way in which a program sees the functions of its messages.
OWN_WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "reducer": lambda patch: patch.setitem(
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        types.BuiltinFunctionType,
        _reduced,
    ),
    "copyreg": lambda patch: patch.setitem(copyreg.dispatch_table, types.BuiltinFunctionType, _reduced),
    "reducer_override": lambda patch: patch.setattr(ForkingPickler, "reducer_override", _override, raising=False),
    "__init__": lambda patch: patch.setattr(ForkingPickler, "__init__", _with_reducer),
    "wrapped": lambda patch: patch.setattr(ForkingPickler, "__init__", functools.wraps(_INIT)(_with_reducer)),
}


@pytest.mark.parametrize("how", OWN_WAYS)
def test_a_way_of_the_programs_own_gets_functions(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    OWN_WAYS[how](monkeypatch)
    assert backend.plain_data([abs]) is None
    assert ForkingPickler.loads(ForkingPickler.dumps([abs])) == [7]


def test_a_replaced_dumps_gets_functions(monkeypatch: pytest.MonkeyPatch, ends: Any) -> None:
    standard = ForkingPickler.dumps
    monkeypatch.setattr(ForkingPickler, "dumps", lambda obj, protocol=None: standard(("seen", obj), protocol))
    reader, writer = ends
    writer.send([abs])
    assert reader.recv() == ("seen", [abs])


class Nothing(pickle.Unpickler):
    """Finds no function and no class."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"forbidden: {module}.{name}")


@pytest.mark.parametrize("message", [[os.system], Holder(), np.float64(1)], ids=["function", "object", "scalar"])
def test_a_replaced_loads_finds_the_functions(monkeypatch: pytest.MonkeyPatch, ends: Any, message: Any) -> None:
    ForkingPickler.dumps(message)
    reader, writer = ends
    monkeypatch.setattr(ForkingPickler, "loads", lambda data: Nothing(io.BytesIO(data)).load())
    writer.send(message)
    with pytest.raises(pickle.UnpicklingError, match="forbidden"):
        reader.recv()


def test_a_replaced_loads_is_not_passed_by_behind_an_array(monkeypatch: pytest.MonkeyPatch, ends: Any) -> None:
    reader, writer = ends
    monkeypatch.setattr(ForkingPickler, "loads", lambda data: Nothing(io.BytesIO(data)).load())
    writer.send([np.ones(10), os.system])
    with pytest.raises(pickle.UnpicklingError, match="forbidden"):
        reader.recv()


@pytest.mark.parametrize("wrap", [True, False], ids=["wraps", "plain"])
def test_a_loads_that_calls_the_standard_one_hears_of_functions_and_arrays_arrive(
    monkeypatch: pytest.MonkeyPatch, ends: Any, wrap: bool
) -> None:
    reader, writer = ends
    standard, heard = ForkingPickler.loads, []

    def loads(data: Any) -> Any:
        heard.append(len(data))
        return standard(data)

    monkeypatch.setattr(ForkingPickler, "loads", functools.wraps(standard)(loads) if wrap else loads)
    writer.send([np.ones(100_000), abs, np.ones(3)])
    got = reader.recv()
    assert (got[0].sum(), got[1], got[2].sum()) == (100_000, abs, 3)
    assert len(heard) == 1


def test_a_replaced_loads_finds_what_the_tasks_and_results_of_a_pool_name(tmp_path: Path) -> None:
    program = """
        import io, pickle, sys
        import mp_all as multiprocessing
        from multiprocessing.reduction import ForkingPickler

        class Bad:
            pass

        class Careful(pickle.Unpickler):
            def find_class(self, module, name):
                if name == "Bad":
                    raise pickle.UnpicklingError("forbidden")
                return super().find_class(module, name)

        def take(thing):
            return "taken"

        def give():
            return Bad()

        if __name__ == "__main__":
            ForkingPickler.loads = staticmethod(lambda data: Careful(io.BytesIO(data)).load())
            with multiprocessing.get_context("fork").Pool(1) as pool:
                for call in (take, (Bad(),)), (give, ()):
                    for _ in range(3):
                        try:
                            print(pool.apply(*call))
                        except pickle.UnpicklingError as error:
                            print(error)
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["forbidden"] * 6


RAISING = """
    import os
    with open({path!r}, "a") as file:
        file.write("x")
    {statement}
    def function(): pass
"""


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("raise ZeroDivisionError", ZeroDivisionError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise SystemExit(3)", SystemExit),
    ],
)
def test_an_error_of_an_import_ends_the_receiving_and_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, error: type[BaseException]
) -> None:
    marks = tmp_path / "marks"
    text = textwrap.dedent(RAISING)
    path = tmp_path / "a_raising_module.py"
    path.write_text(text.format(path=str(marks), statement="pass"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import a_raising_module  # type: ignore[import-not-found]

    data = backend.plain_data([a_raising_module.function])
    del sys.modules["a_raising_module"]
    marks.unlink()
    path.write_text(text.format(path=str(marks), statement=statement))
    importlib.invalidate_caches()
    with pytest.raises(error):
        backend.loads(data)
    assert marks.read_text() == "x"


def test_an_audit_hook_hears_of_each_function() -> None:
    program = """
        import sys
        from mp_core.sharing import backend
        heard = []
        sys.addaudithook(lambda event, args: event == "pickle.find_class" and heard.append(args))
        backend.plain_loads(backend.plain_data([abs]))
        print(heard)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[('builtins', 'abs')]"


@pytest.mark.parametrize(
    ("how", "text", "is_named"),
    [
        ("file", "", True),
        ("-c", "", False),  # no other process can import this main module
        ("-m", "", True),  # its forked children have it
        ("-m", "multiprocessing.set_start_method('spawn', force=True)", False),
        ("file", "import sys; sys.ps1 = '>>> '", False),  # a prompt
        ("file", "exec('def function(): pass')", False),  # a debugger's line
        ("file", "__file__ = 'gone.py'", False),
    ],
)
def test_a_function_of_the_main_module_has_a_name_if_it_can_be_imported(
    tmp_path: Path, how: str, text: str, is_named: bool
) -> None:
    program = textwrap.dedent(
        f"""
        import multiprocessing
        from mp_core.sharing import backend
        def function(): pass
        multiprocessing.set_start_method("fork")
        before = backend.plain_data(function)
        {text}
        print(before is not None, backend.plain_data(function) is not None)
        """
    )
    path = tmp_path / "a_package" / "__main__.py"
    path.parent.mkdir()
    path.write_text(program)
    arguments = {"file": [str(path)], "-c": ["-c", program], "-m": ["-m", "a_package"]}[how]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.split() == [str(how != "-c"), str(is_named)], done.stderr
