"""How a call ends, as a line that says the same on each run: its value, or its exception."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

LONG = 60.0  # seconds: what is waited for comes before
library = sys.argv[1]
method = sys.argv[2]
engine = sys.argv[3] if len(sys.argv) > 3 else ""
mp = importlib.import_module(library)
is_standard = library == "multiprocessing"


def submodule(name: str) -> Any:
    return importlib.import_module(f"{library}.{name}")


def make_pool(*args: Any, **options: Any) -> Any:
    return mp.Pool(*args, **options, engine=engine) if engine else mp.Pool(*args, **options)


def make_executor(*args: Any, **options: Any) -> Any:
    if is_standard:
        return ProcessPoolExecutor(*args, mp_context=mp.get_context(), **options)
    return mp.ProcessPoolExecutor(*args, **options)


def plain(value: Any) -> str:
    """Return the text of a value, without what differs from run to run."""
    if isinstance(value, BaseException):
        return described(value)
    if type(value) in (list, tuple):
        is_cycle = any(each is value for each in value)
        return "a cycle" if is_cycle else f"{type(value).__name__}[{', '.join(map(plain, value))}]"
    text = re.sub(r"0x[0-9a-f]+", "0x", repr(value))
    return f"{type(value).__qualname__} {text}"


def described(error: BaseException) -> str:
    """Return an exception's type, and its text and notes if a task has raised it: others have texts of their own."""
    name = next(cls.__name__ for cls in type(error).__mro__ if not cls.__module__.startswith("mp_"))
    if "RemoteTraceback" not in type(error.__cause__).__name__ or "Encoding" in name:
        return f"raises {name}"
    place = re.compile(r"in .*(worker|node) ", re.S)  # the task, which our notes name
    notes = [note for note in getattr(error, "__notes__", ()) if not place.match(note)]
    return f"raises {name}({error}) in a task, notes {notes}, attributes {sorted(vars(error).keys() - {'__notes__'})}"


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    try:
        value = call(*args, **options)
    except BaseException as error:
        return described(error)
    return plain(value)


def kind(text: str) -> str:
    """Return an outcome without the text of an exception."""
    return text.partition("(")[0] if text.startswith("raises ") else text


def say(name: str, *found: Any) -> None:
    line = " | ".join(each if isinstance(each, str) else plain(each) for each in found)
    print(f"{name} -> {line}".replace("\n", "\\n").replace("__mp_main__", "__main__"), flush=True)


def steps_of(thing: Any, steps: str, **names: Any) -> list[str]:
    """Evaluate each of the *steps*, between semicolons, on *thing*."""
    each = [step.strip() for step in steps.split(";")]
    return [f"{step}: {outcome(eval, f'thing.{step}', {'thing': thing, **names})}" for step in each]
