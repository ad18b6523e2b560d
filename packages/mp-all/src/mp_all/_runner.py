"""Run an unchanged program with mp_all in the place of multiprocessing: `mp-all script.py`.

The runner sets ``MP_ALL=1`` and replaces its process by a new Python that runs the program itself. So ``sys.argv``,
``__main__``, its ``__file__`` and ``__spec__``, and what spawn makes of them are right without any work here. The rest
is in ``_mp_all_startup.py``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

HOOK = ("mp_all.pth", "_mp_all_startup.py")  # the line that Python runs, and the module that it imports


def is_program(arguments: list[str]) -> bool:
    """
    Return whether *arguments* name a program as those of ``python`` do: a module, code, ``-`` for standard input, or a
    path that exists.

    >>> is_program(["-m", "timeit"]), is_program(["no such file"])
    (True, False)
    """
    first = arguments[0] if arguments else ""
    return first[:2] in ("-m", "-c", "-") or (first != "" and os.path.exists(first))


def run_early() -> None:
    """
    Run the program now, if Python is about to execute ``-m mp_all`` with one: before anything else is imported.

    While Python looks for the module of ``-m``, it imports its package, and ``sys.argv`` begins with ``-m``.
    """
    arguments = sys.argv[1:]
    named = sys.orig_argv[len(sys.orig_argv) - len(arguments) - 1]
    if (named == "mp_all" or named.endswith("mmp_all")) and is_program(arguments):
        run(arguments)


def run(arguments: list[str], words: int = 0) -> NoReturn:
    """
    Run the program that *arguments* name, in this process, with the options of this Python.

    Before the program, the command line has so many *words* that are the command's own.
    """
    if missing := [name for name in HOOK if not any(os.path.isfile(os.path.join(at, name)) for at in _site_folders())]:
        sys.exit(
            f"mp-all: {missing[0]} is in none of the folders that this Python reads at its start "
            f"({', '.join(_site_folders()) or 'it has none'}): install mp-all with pip, without --target, and do not "
            "run python with -S. Otherwise change the program's import to `import mp_all as multiprocessing`"
        )
    os.environ["MP_ALL"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    original = sys.orig_argv[: len(sys.orig_argv) - len(arguments) - words]
    os.execv(sys.executable, command(sys.executable, [*original, *arguments], arguments))


def command(python: str, original: list[str], arguments: list[str]) -> list[str]:
    """
    Return the command line *original* without its ``-m mp_all``, or without the path of the command ``mp-all``.

    >>> command("python", ["python", "-Im", "mp_all", "a.py", "-v"], ["a.py", "-v"])
    ['python', '-I', 'a.py', '-v']
    >>> command("python", ["python", "-I", "/usr/bin/mp-all", "a.py"], ["a.py"])
    ['python', '-I', 'a.py']
    """
    options = original[1 : len(original) - len(arguments)]
    last = options.pop()
    if not last.endswith("mp_all"):
        return [python, *options, *arguments]
    if last == "mp_all":
        last = options.pop() + last
    others = last.removesuffix("mmp_all")
    return [python, *options, *([] if others == "-" else [others]), *arguments]


def _site_folders() -> list[str]:
    if sys.flags.no_site:
        return []
    import site  # Python has it already

    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
