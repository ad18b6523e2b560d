"""Packages that send objects of other libraries, and when each is imported.

Note [Packages and their subjects]
----------------------------------
A package that sends objects of another library has *subjects*, and is imported and registered when one of them is met:

    "import numpy"     a module: when it has been imported
    "numpy.ndarray"    a class: before the first object of it, or of a subclass, is pickled
    "library"          a package that registers classes with ForkingPickler: when it registers the first
    none               at once

mp-reductions comes with NumPy, and not with the first array: a process may have no descriptor left when it receives
one, and its pickle names modules that would have to be opened. An import does not fail because of the package that
waits for it; the error comes when an object of the class is met.

A package registers itself with its subjects (`register`), and children of this process watch for these (`watch_all`).
"""

from __future__ import annotations

from mp_core.system import imports, reducers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_installed = False
_install: Callable[[], None]
_packages: dict[str, tuple[str, ...]] = {}


def installed_by(install: Callable[[], None]) -> None:
    """Let *install* be called before a package is registered: `mp_core.install`, which is above this module."""
    global _install
    _install = install


def begin() -> bool:
    """Note that the installation begins; return False if it has begun before, in this process or before its fork."""
    global _installed
    before, _installed = _installed, True
    return not before


def is_installed() -> bool:
    """Return whether `mp_core.install` was called in this process, or before the fork that made it."""
    return _installed


def register(package: str, *subjects: str) -> None:
    """Have every child watch for the *subjects* of *package*, whose `init_reductions` has been called here."""
    _install()
    _packages[package] = subjects


def watch(package: str, *subjects: str) -> None:
    """Import *package* and call its `init_reductions` when one of its *subjects* is met; at once if it has none."""
    if package in _packages:
        return
    register(package, *subjects)

    def initialise() -> None:
        module = imports.load(package)
        # The package itself may have imported the subject, and is in the middle of that; then another subject is met.
        if hasattr(module, "init_reductions"):
            module.init_reductions()

    def initialise_quietly() -> None:
        try:
            initialise()
        except Exception:
            pass  # see Note [Packages and their subjects]

    if not subjects:
        initialise()
    for subject in subjects:
        if subject.startswith("import "):
            imports.when_imported(subject.removeprefix("import "), initialise_quietly)
        else:
            reducers.when_needed(subject, initialise)


def watch_all(packages: dict[str, tuple[str, ...]]) -> None:
    """Install, and watch for the subjects of each of these packages."""
    _install()
    for package, subjects in packages.items():
        watch(package, *subjects)


def registered() -> dict[str, tuple[str, ...]]:
    """Return the packages that children watch for, with their subjects."""
    return dict(_packages)
