"""Importing mp_core changes nothing of multiprocessing; `install` does, once, and the children are installed too."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

# Every attribute of every module of multiprocessing, and of the classes in them, by identity.
ATTRIBUTES = """
import importlib, multiprocessing, pkgutil, sys
for module in pkgutil.walk_packages(multiprocessing.__path__, "multiprocessing."):
    if not module.name.endswith("win32"):
        importlib.import_module(module.name)

def attributes():
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "multiprocessing"}
    found = {(name, key): value for name, module in modules.items() for key, value in vars(module).items()}
    classes = {value for value in found.values() if isinstance(value, type)}
    return found | {(kind, key): value for kind in classes for key, value in vars(kind).items()}

def changed(before):
    after = attributes()
    return sorted(
        f"{getattr(where, '__qualname__', where)}.{name}"
        for where, name in before.keys() | after.keys()
        if before.get((where, name), before) is not after.get((where, name), after)
    )
"""
INSTALLED = """
from multiprocessing.connection import Connection

def installed():
    return hasattr(Connection, "_mp_shares")
"""


@pytest.mark.parametrize("package", ["mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_cuda", "mp_torch"])
def test_importing_a_package_changes_no_attribute_of_multiprocessing(package: str) -> None:
    program = f"{ATTRIBUTES}\nbefore = attributes()\nimport {package}\nprint(changed(before))"
    assert succeeded(run_python("-c", program)) == "[]\n"


def test_install_changes_the_attributes_that_it_names_and_calling_it_again_changes_none() -> None:
    program = f"""{ATTRIBUTES}
import mp_core
before = attributes()
mp_core.install()
print(*changed(before), sep="\\n")
again = attributes()
mp_core.install()
assert changed(again) == []
"""
    assert succeeded(run_python("-c", program)).split() == [
        "BaseProcess.ajoin",
        "Connection._close",
        "Connection._mp_shares",
        "Connection.recv_bytes_into",
        "Connection.send",
        "ForkProcess._Popen",
        "ForkServer.ensure_running",
        "ForkServerProcess._Popen",
        "ForkingPickler._copyreg_dispatch_table",
        "ForkingPickler._extra_reducers",
        "ForkingPickler.dumps",
        "ForkingPickler.loads",
        "SpawnProcess._Popen",
        "multiprocessing.forkserver.ensure_running",
        "multiprocessing.reduction.dump",
    ]


@pytest.mark.parametrize("init", ["mp_reductions.init_reductions()", "mp_cuda.init_reductions()", "mp_all.Block(1)"])
def test_the_other_packages_install(init: str) -> None:
    program = f"{INSTALLED}\nimport {init.partition('.')[0]}\n{init}\nprint(installed())"
    assert succeeded(run_python("-c", program)) == "True\n"


@pytest.mark.parametrize("start_method", ["spawn", "forkserver", "fork"])
def test_the_child_of_an_installed_program_is_installed(tmp_path: Path, start_method: str) -> None:
    program = f"""
    import multiprocessing
    import sys
    from multiprocessing.connection import Connection

    def child(connection):
        import mp_core

        connection.send((hasattr(Connection, "_mp_shares"), mp_core.get_sharing_strategy()))
        connection.send(mp_core.Block(5))

    if __name__ == "__main__":
        import mp_core

        mp_core.install()
        mp_core.set_sharing_strategy("file_system")
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("{start_method}").Process(target=child, args=(theirs,))
        process.start()
        print(*ours.recv())
        process.join()
        print(ours.recv().nbytes)
    """
    assert succeeded(run_script(tmp_path, program)) == "True file_system\n5\n"


def test_without_install_blocks_travel_and_one_connection_cannot_be_set_to_send_by_value() -> None:
    program = f"""{INSTALLED}
import mp_core
ours, theirs = mp_core.Pipe()
ours.send(mp_core.Block(7))
print(theirs.recv().nbytes, installed(), mp_core.get_sharing(ours))
try:
    mp_core.set_sharing(False, ours)
except RuntimeError as error:
    print(error)
"""
    done = succeeded(run_python("-c", program)).splitlines()
    assert done[0] == "7 False True"
    assert "needs mp_core.install()" in done[1]


def test_objects_of_the_main_module_are_freed_before_the_modules_that_their_destructors_use(tmp_path: Path) -> None:
    (tmp_path / "freed.py").write_text(
        "import sys\n\nitself, freed = sys.modules[__name__], []\n\n"
        "class Thing:\n    def __del__(self):\n        freed.append(1)\n"
    )
    program = """
        import mp_all as mp
        from freed import Thing

        thing = Thing()
        if __name__ == "__main__":
            process = mp.get_context("spawn").Process(target=int)
            process.start()
            process.join()
    """
    assert succeeded(run_script(tmp_path, program)) == ""
