"""A start pays for nothing that it does not use: which modules are imported when, and which system calls are made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

#: Modules that cost a start more than all of ours.
SLOW = {
    "_cffi_backend",
    "asyncio",
    "concurrent.futures",
    "ctypes",
    "dataclasses",
    "hashlib",
    "inspect",
    "json",
    "logging",
    "multiprocessing.connection",
    "multiprocessing.pool",
    "numpy",
    "pathlib",
    "subprocess",
    "tempfile",
    "typing",
    "urllib",
}
OURS = ("mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_nodes", "mp_cuda", "mp_torch", "mp_all")
CORE = {"mp_core", "mp_core._version", "mp_core.installation", "mp_core.system"}
CORE |= {f"mp_core.installation.{name}" for name in ("install", "lock_contexts")}
CORE |= {f"mp_core.system.{name}" for name in ("imports", "machine", "packages", "reducers", "settings")}
AFTER = {
    "mp_core": CORE,
    "mp_spawn": {"mp_spawn"},
    "mp_pool": {"mp_pool"},
    "mp_nodes": {"mp_nodes"},
    "mp_cuda": CORE | {"mp_cuda"},
    "mp_all": CORE
    | {
        "mp_all",
        "mp_core.installation.contexts",
        "mp_core.installation.queue_functions",
        "mp_pool",
        "mp_pool.contexts",
    },
}
#: An environment in which no setting asks for an early import.
UNSET = dict.fromkeys(("MP_CACHE_BYTES", "MP_MESSAGE_TIMEOUT", "MP_SHARE", "MP_SHARING_STRATEGY", "MP_STRICT_PUT"), "")
MODULES = "import json, sys\nprint(json.dumps(sorted(sys.modules)))"


def modules(program: str) -> set[str]:
    """Return the modules that are imported after *program*, which is run before json is imported."""
    return set(json.loads(succeeded(run_python("-c", f"{program}\n{MODULES}", **UNSET))))


def ours(found: set[str]) -> set[str]:
    return {name for name in found if name.partition(".")[0] in OURS}


@pytest.mark.parametrize("package", sorted(AFTER))
def test_an_import_imports_these_modules_of_ours_and_none_that_is_slow(package: str) -> None:
    found = modules(f"import {package}") - modules("") | ours(modules(f"import {package}"))
    assert ours(found) == AFTER[package]
    assert found & (SLOW - {"json"}) == set()


def test_the_modules_of_a_setting_are_imported_if_it_is_set_and_a_wrong_value_is_an_error_at_import() -> None:
    for name, value in (
        ("MP_CACHE_BYTES", "much"),
        ("MP_CHANNEL", "2"),
        ("MP_INLINE_BYTES", "-1"),
        ("MP_MESSAGE_TIMEOUT", "soon"),
        ("MP_SHARE", "perhaps"),
        ("MP_SHARED_ALLOCATOR", "2"),
        ("MP_SHARING_STRATEGY", "pigeon"),
        ("MP_STRICT_PUT", "x"),
        ("MP_WITHOUT_LIBSHM", "maybe"),
    ):
        done = run_python("-c", "import mp_all", **(UNSET | {name: value}))
        assert done.returncode == 1 and name in done.stderr.splitlines()[-1], done.stderr


CHILD = """
    import sys
    import mp_all as mp

    def found(queue):
        queue.put(sorted(sys.modules))

    def of_worker(_):
        return sorted(sys.modules)

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        if sys.argv[2] == "pool":
            with context.Pool(1) as pool:
                names = pool.apply(of_worker, (0,))
        else:
            queue = context.Queue()
            child = context.Process(target=found, args=(queue,))
            child.start()
            names = queue.get()
            child.join()
        import json
        print(json.dumps(names))
"""


@pytest.mark.parametrize("kind", ["process", "pool"])
def test_a_child_that_sends_a_number_imports_no_numpy(tmp_path: Path, start_method: str, kind: str) -> None:
    found = set(json.loads(succeeded(run_script(tmp_path, CHILD, start_method, kind, **UNSET))))
    standard = modules("import multiprocessing.pool, multiprocessing.queues, multiprocessing.synchronize")
    slow = {"numpy", "mp_reductions", "mp_cuda", "mp_spawn", "asyncio", "logging", "inspect", "hashlib"}
    assert not found & (slow - standard)


def test_a_spawned_worker_begins_its_first_task_with_these_modules_of_ours(tmp_path: Path) -> None:
    found = set(json.loads(succeeded(run_script(tmp_path, CHILD, "spawn", "pool", **UNSET))))
    children = "child_descriptors death_pipe inheritance main_module passed_descriptors"
    sharing = "backend compiled message_timeout strategy"
    tasks, workers = "function_cache mappers task_messages", "memory own_index task_rings worker_main"
    assert ours(found) - AFTER["mp_all"] == {
        *("mp_core._block", "mp_core.children", "mp_core.sharing"),
        *(f"mp_core.children.{name}" for name in children.split()),
        *(f"mp_core.sharing.{name}" for name in sharing.split()),
        *("mp_pool.tasks", "mp_pool.workers"),
        *(f"mp_pool.tasks.{name}" for name in tasks.split()),
        *(f"mp_pool.workers.{name}" for name in workers.split()),
    }
    assert not found & {"multiprocessing.connection", "multiprocessing.pool", "tempfile", "traceback"}


def test_the_fork_server_has_numpy_and_libshm_if_its_parent_has(tmp_path: Path) -> None:
    program = """
        import os
        import numpy
        import mp_all as mp

        def of_the_server(queue):
            with open(f"/proc/{os.getppid()}/maps") as maps:
                text = maps.read()
            queue.put([name in text for name in ("numpy/", "mp_reductions/_native", "mp_core/_libshm")])

        if __name__ == "__main__":
            context = mp.get_context("forkserver")
            queue = context.Queue()
            child = context.Process(target=of_the_server, args=(queue,))
            child.start()
            print(*queue.get())
            child.join()
    """
    assert succeeded(run_script(tmp_path, program)) == "True True True\n"


def test_a_worker_of_the_fork_server_imports_nothing_before_its_first_chunk(tmp_path: Path) -> None:
    # The modules at the fork, so of the server, and not those that its parent imports meanwhile.
    (tmp_path / "at_the_fork.py").write_text(
        "import os, sys\nMODULES = set()\nos.register_at_fork(after_in_child=lambda: MODULES.update(sys.modules))\n"
    )
    program = """
        import mp_all as mp

        def imported(_):
            import sys
            at_the_fork = sys.modules["at_the_fork"]
            return sorted(set(sys.modules) - at_the_fork.MODULES - {"__mp_main__"})

        if __name__ == "__main__":
            mp.set_forkserver_preload(["at_the_fork"])
            with mp.get_context("forkserver").Pool(1) as pool:
                print(pool.map(imported, range(2), 1))
    """
    assert succeeded(run_script(tmp_path, program, **UNSET)) == "[[], []]\n"


def test_a_spawned_worker_runs_chunks_without_the_standard_librarys_pool(tmp_path: Path) -> None:
    program = """
        import sys
        import mp_all as mp

        def has_standard_pool(_):
            return "multiprocessing.pool" in sys.modules

        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                print(pool.map(has_standard_pool, range(4), 2), pool.starmap(divmod, [(7, 2)] * 4, 2))
    """
    assert succeeded(run_script(tmp_path, program, **UNSET)) == f"{[False] * 4} {[(3, 1)] * 4}\n"


def test_the_list_that_a_program_asks_the_fork_server_to_preload_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("loaded_by_server = True\n")
    program = """
        import sys
        import mp_all as mp
        from multiprocessing import forkserver

        def loaded(queue):
            queue.put("theirs" in sys.modules)

        if __name__ == "__main__":
            sys.path.insert(0, sys.path[0])
            context = mp.get_context("forkserver")
            context.set_forkserver_preload(["no_such_module", "theirs"])
            for _ in range(2):
                queue = context.SimpleQueue()
                child = context.Process(target=loaded, args=(queue,))
                child.start()
                print(queue.get(), forkserver._forkserver._preload_modules)
                child.join()
                # A server that died is started again.
                import os, signal
                os.kill(pid := forkserver._forkserver._forkserver_pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    """
    text = "True ['no_such_module', 'theirs']\n"
    assert succeeded(run_script(tmp_path, program)) == 2 * text


def test_without_numpy_everything_works_until_an_array_is_met(tmp_path: Path) -> None:
    program = """
        import sys
        sys.modules["numpy"] = None
        import mp_all as mp

        def work(queue):
            queue.put("sent")

        if __name__ == "__main__":
            queue = mp.get_context("spawn").Queue()
            child = mp.get_context("spawn").Process(target=work, args=(queue,))
            child.start()
            print(queue.get())
            child.join()
            with mp.Pool(1) as pool:
                print(pool.apply(abs, (-3,)))
            try:
                mp.shared
            except ImportError as error:
                print("numpy" in str(error))
    """
    assert succeeded(run_script(tmp_path, program)) == "sent\n3\nTrue\n"


def test_arrays_are_sent_through_shared_memory_whatever_was_imported_first() -> None:
    for first, second in (("numpy", "mp_all"), ("mp_all", "numpy")):
        program = f"""if 1:
            import {first}, {second}
            import numpy as np, mp_all as mp
            queue = mp.SimpleQueue()
            class Own(np.ndarray):
                pass
            for array in (np.ones(100_000), np.ones(100_000).view(Own)):
                queue.put(array)
                arrived = queue.get()
                print(mp.is_shared(arrived), type(arrived).__name__)
        """
        assert succeeded(run_python("-c", program)) == "True ndarray\nTrue Own\n"


def test_the_shared_allocator_of_the_environment_is_installed_when_numpy_is_imported() -> None:
    program = """if 1:
        import sys
        import mp_all as mp
        print("numpy" in sys.modules)
        import numpy as np
        print(mp.is_shared(np.ones(100_000)))
    """
    assert succeeded(run_python("-c", program, MP_SHARED_ALLOCATOR="1", **UNSET)) == "False\nTrue\n"


def test_a_fork_during_the_first_use_in_another_thread_leaves_the_child_usable() -> None:
    program = """if 1:
        import os, threading
        import mp_all as mp
        threads = [threading.Thread(target=lambda: mp.Block(100)), threading.Thread(target=lambda: mp.Queue().put(1))]
        for thread in threads:
            thread.start()
        for _ in range(20):
            if (pid := os.fork()) == 0:
                mp.Block(100)
                queue = mp.SimpleQueue()
                queue.put(1)
                os._exit(queue.get())
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        for thread in threads:
            thread.join()
        print("done")
    """
    for _ in range(3):
        assert succeeded(run_python("-W", "ignore::DeprecationWarning", "-c", program, **UNSET)) == "done\n"


def test_a_fork_counts_no_references_to_the_globals_of_a_main_module_from_a_file(tmp_path: Path) -> None:
    # A count is a write: the kernel would copy the page of each object, in each child.
    program = """
        import os, sys
        import mp_all as mp
        def main():
            with mp.get_context("fork").Pool(1) as pool:  # imports what sends definitions
                pool.map(abs, [1])
            before = sys.getrefcount(THING)
            if (pid := os.fork()) == 0:
                os._exit(sys.getrefcount(THING) - before)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        THING = object()
        if __name__ == "__main__":
            main()
    """
    assert succeeded(run_script(tmp_path, program)) == "0\n"


# ---- system calls ----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import {module} as mp
context = mp.get_context(sys.argv[1])

def nothing():
    pass

if __name__ == "__main__":
    child = context.Process(target=nothing)
    child.start()
    child.join()
"""
#: Calls that make something that other processes can see, or that stays: a session would need them.
SEEN = ("socket", "connect", "bind", "memfd_create", "flock", "mkdir", "unlink", "rmdir", "clone", "vfork", "execve")


def calls(folder: Path, module: str, method: str) -> Counter[str]:
    """Return the number of those system calls in a program and its children."""
    log = folder / f"{module}-{method}"
    program = folder / f"program_of_{module}.py"
    program.write_text(PROGRAM.format(module=module))
    strace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={','.join((*SEEN, '/^open'))}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MP_")}
    subprocess.run([*strace, sys.executable, str(program), method], check=True, timeout=120, env=environment)
    text = log.read_text()
    assert "mpshm" not in text
    return Counter(re.findall(rf"^\d+ +({'|'.join(SEEN)})\(", text, re.M))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_program_without_arrays_queues_and_pools_makes_the_calls_of_multiprocessing(
    tmp_path: Path, method: str
) -> None:
    assert calls(tmp_path, "mp_all", method) == calls(tmp_path, "multiprocessing", method)


def test_a_program_with_pipes_imports_the_temporary_files_of_listeners_with_the_first_listener() -> None:
    text = succeeded(
        run_python(
            "-c",
            "import sys, mp_all as mp\n"
            "from multiprocessing import connection\n"
            "first, second = mp.Pipe()\n"
            "first.send(1)\n"
            "print(second.recv(), 'tempfile' in sys.modules)\n"
            "with connection.Listener(family='AF_UNIX') as listener:\n"
            "    print('tempfile' in sys.modules)\n"
            "import tempfile\n"
            "theirs = getattr(connection, 'tempfile', tempfile)  # from 3.14 on they import it late themselves\n"
            "print(theirs.mktemp is tempfile.mktemp, dir(theirs) == dir(tempfile))\n"
            "theirs.tempdir = '/nowhere'\n"
            "print(tempfile.gettempdir())",
            **UNSET,
        )
    )
    assert text.split() == ["1", "False", "True", "True", "True", "/nowhere"]
