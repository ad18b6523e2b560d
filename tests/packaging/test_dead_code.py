"""No function of a package or of libshm is there that nobody calls."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tools.tracked import ROOT, tracked

#: Methods and functions that others call, by the name that they ask for.
CALLED_BY = {
    "LibshmBuildHook": "hatchling",
    "PyInit__block": "the interpreter",
    "PyInit__native": "the interpreter",
    "_executor_manager_thread": "concurrent.futures, at the end of a program",
    "_map_async": "multiprocessing.pool.Pool.map and starmap",
    "_repr_html_": "notebooks",
    "_repopulate_pool": "programs that know multiprocessing.pool.Pool",
    "_rlock": "programs that know the queues of multiprocessing",
    "_wlock": "programs that know the queues of multiprocessing",
    "abort_everything": "joblib",
    "continue_in_fresh_interpreter": "the program that a rank executes, a text",
    "duplicate_for_child": "multiprocessing.reduction.DupFd",
    "emit": "logging.Handler.handle",
    "initialize": "hatchling",
    "interrupt": "multiprocessing.Process.interrupt, from CPython 3.14 on",
    "persistent_load": "pickle.Unpickler",
    "readinto": "pickle.Unpickler",
    "readline": "pickle.Unpickler",
    "retrieve_result_callback": "joblib",
    "start_call": "joblib",
}
# Programs that look into the standard classes.
CALLED_BY |= dict.fromkeys(
    (
        "_call_queue",
        "_cond",
        "_executor_manager_thread_wakeup",
        "_flag",
        "_inqueue",
        "_is_zero",
        "_outqueue",
        "_pending_work_items",
        "_queue_count",
        "_result_queue",
        "_safe_to_dynamically_spawn_children",
        "_sem",
        "_shutdown_thread",
        "_sleeping_count",
        "_taskqueue",
        "_unfinished_tasks",
        "_work_ids",
    ),
    "programs",
)
DECORATED = "at_exit.register"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXT_AND_COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)
C_FUNCTION = re.compile(r"(?m)^[A-Za-z_][A-Za-z_0-9 *]*[ *](\w+)\(")
NAME = re.compile(r"[A-Za-z_]\w*")


def sources() -> dict[Path, str]:
    """Return the texts of the packages and of libshm, without its tests."""
    folders = ["packages", "libshm/src", "libshm/include", "libshm/cmd"]
    kinds = (".py", ".c", ".h", ".toml")
    return {path: (ROOT / path).read_text() for path in tracked(folders) if path.suffix in kinds}


def documented() -> set[str]:
    """Return the names that the reference has: programs call them."""
    texts = [path.read_text() for path in (ROOT / "docs" / "reference").rglob("*") if path.is_file()]
    return set(NAME.findall("\n".join(texts)))


def defined_in_python(text: str, public: set[str]) -> list[str]:
    """
    Return the functions, methods and classes of a module, but no public method of a *public* class: programs call it.

    >>> defined_in_python("class A:\\n    def b(self): ...\\n    def __len__(self): ...", set())
    ['A', 'b']
    >>> defined_in_python("class A:\\n    def b(self): ...\\n    def _c(self): ...", {"A"})
    ['A', '_c']
    """
    found: list[str] = []
    tree = ast.parse(text)
    offered = {
        id(method)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in public
        for method in node.body
        if isinstance(method, FUNCTIONS) and not method.name.startswith("_")
    }
    for node in ast.walk(tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or id(node) in offered:
            continue
        is_called_by_python = node.name.startswith("__") and node.name.endswith("__")
        if not is_called_by_python and not any(DECORATED in ast.unparse(each) for each in node.decorator_list):
            found.append(node.name)
    return found


def used_in_python(text: str) -> set[str]:
    """Return the names that a module uses, and its texts that are nothing but a name, as those of a table."""
    tree = ast.parse(text)
    exports = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    exported = {id(each) for node in exports for each in ast.walk(node.value)}  # a name in __all__ is no call
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported:
            used.add(node.value)
    return used


def test_nothing_is_defined_that_nobody_uses() -> None:
    used: set[str] = set()
    words: Counter[str] = Counter()  # of C
    made: Counter[str] = Counter()
    home: dict[str, Path] = {}
    public = documented()
    for path, text in sources().items():
        if path.suffix == ".py":
            used |= used_in_python(text)
            home |= dict.fromkeys(defined_in_python(text, public), path)
        elif path.suffix == ".toml":
            used.update(NAME.findall(text))
        else:
            code = TEXT_AND_COMMENT.sub(" ", text)
            words.update(NAME.findall(code))
            functions = C_FUNCTION.findall(code)
            made.update(functions)  # neither a definition nor a declaration is a call
            home |= dict.fromkeys(functions, path)
    assert len(home) > 2000  # otherwise they were not found
    used |= public | {*CALLED_BY} | {name for name, count in words.items() if count > made[name]}
    dead = [f"{path}: {name}" for name, path in home.items() if name not in used]
    assert {*CALLED_BY} <= {*home}, "a name that is gone"
    assert not dead, "nobody uses:\n" + "\n".join(dead)
