"""Limits of a process and its machine: small arrays need little, and an error names the limit that was reached."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

from mp_core.system.settings import parse_bytes

REFUSED = """
    import resource, signal, sys
    import mp_core as mp

    def why(nbytes):
        try:
            mp.Block(nbytes)
        except (MemoryError, OSError) as error:
            return type(error).__name__ + ": " + str(error)
        return "not refused"
"""


@pytest.mark.parametrize("text", ["1GiB", "512 mib", "0", "1.5G", "100kB"])
def test_the_size_of_the_cache_has_units(text: str) -> None:
    program = "import mp_core; mp_core.Block(1); print(mp_core.memory_stats()['cache_limit'])"
    limit = int(succeeded(run_python("-c", program, MP_CACHE_BYTES=text)))
    assert limit <= parse_bytes(text)  # less on a machine with little memory
    assert parse_bytes("1GiB") == 1 << 30


@pytest.mark.parametrize("text", ["1 Gigabyte", "-1", "lots", "1e9", "99999999999GiB"])
def test_an_invalid_size_of_the_cache_is_refused_with_the_name_of_the_variable(text: str) -> None:
    done = run_python("-c", "import mp_core", MP_CACHE_BYTES=text)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: MP_CACHE_BYTES: ") and repr(text) in last and "512MiB" in last


def test_a_limit_on_address_space_leaves_room_for_small_arrays(tmp_path: Path, strategy: str) -> None:
    program = """
        import resource
        import mp_core as mp
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        blocks = [mp.Block(100_000) for _ in range(200)]
        private = bytearray(1 << 30)  # and for the program's own memory
        print(sum(block.nbytes for block in blocks))
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "20000000\n"


def test_a_limit_on_address_space_leaves_room_in_the_manager_for_many_processes(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, resource, signal
        import mp_core as mp
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # of the manager too, which is started below
        mine = mp.Block(80)
        told, tells = os.pipe()
        children, said = [], b""
        while len(children) < 1025 and said in b"o":
            children.append(os.fork())
            if children[-1] == 0:
                said = b"?"
                try:
                    theirs, said = mp.Block(80), b"o"
                except MemoryError as error:
                    said = b"E" if "manager" in str(error) and "ulimit -v" in str(error) else b"?"
                finally:
                    os.write(tells, said)
                    if said != b"o":
                        os._exit(1)
                signal.pause()
            said = os.read(told, 1)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print(len(children) > 200, said)
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "True b'E'\n"


def test_a_sender_with_little_address_space_keeps_it_for_messages_by_value(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, resource, sys, warnings
        import numpy as np
        import mp_all as mp

        warnings.simplefilter("ignore", mp.SharedMemoryWarning)
        receiver, sender = mp.Pipe(duplex=False)
        if os.fork() == 0:
            array = np.ones(1 << 17)
            used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
            for _ in range(3):
                sender.send(array)
            os._exit(0)
        print(*(receiver.recv().sum() for _ in range(3)), os.wait()[1])
    """
    said = succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy))
    assert said == "131072.0 131072.0 131072.0 0\n"


def test_a_receiver_with_little_address_space_gets_the_bytes_of_private_arrays(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, resource, sys, warnings
        import numpy as np
        import mp_all as mp

        warnings.simplefilter("ignore", mp.SharedMemoryWarning)
        receiver, sender = mp.Pipe(duplex=False)
        if os.fork() == 0:
            used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))
            right = [bool((receiver.recv() == np.arange(1 << 17)).all()) for _ in range(3)]
            try:
                receiver.recv()
            except mp.ReceiveError as error:
                right.append("no address space" in str(error))
            os._exit(right != [True] * 4)
        for _ in range(3):
            sender.send(np.arange(1 << 17))
        sender.send(mp.shared.zeros(1 << 17))
        print(os.wait()[1])
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "0\n"


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, strategy: str) -> None:
    program = (
        REFUSED
        + """
    mp.Block(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    print(why(300 << 20))
    """
    )
    said = succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy))
    assert said.startswith("MemoryError: ") and "ulimit -f" in said and "ulimit -v" not in said
    assert str(300 << 20) in said


def in_a_mount_namespace(setup: str, program: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", setup], capture_output=True).returncode:
        pytest.skip(f"no permission to run {setup!r} in a namespace of its own")
    line = f"{setup} && exec {sys.executable} {program}"
    return run_python("-c", f"import os; os.execvp('unshare', ['unshare', '-m', 'sh', '-c', {line!r}])", **environment)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "inside.py"
    path.write_text("import textwrap\nexec(textwrap.dedent(" + repr(text) + "))\n")
    return path


def test_a_missing_dev_shm_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        REFUSED + "\n    print(why(1000))\n    mp.set_sharing_strategy('file_descriptor')\n    print(why(1000))",
    )
    setup = "mount -t tmpfs -o ro,size=4k tmpfs /dev/shm"
    first, second = succeeded(in_a_mount_namespace(setup, path, MP_SHARING_STRATEGY="file_system")).splitlines()
    assert "/dev/shm" in first and "MPSHM_RUNTIME_DIR" not in first
    assert second == "not refused"


@pytest.mark.parametrize("left", ["a page", "no page"])
def test_a_full_runtime_folder_is_reported_and_not_memory(tmp_path: Path, strategy: str, left: str) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    path = written(tmp_path, REFUSED + "\n    print(why(1000))\n    assert why(1000) == why(1000)")
    setup = f"mount -t tmpfs -o size=16k tmpfs {folder}"
    if left == "no page":
        setup += f" && head -c 16384 /dev/zero > {folder}/filling"
    environment = {"MP_SHARING_STRATEGY": strategy, "MPSHM_RUNTIME_DIR": str(folder)}
    said = succeeded(in_a_mount_namespace(setup, path, **environment))
    assert "MPSHM_RUNTIME_DIR" in said and "full" in said and "ulimit" not in said


def test_a_core_dump_has_no_segment(tmp_path: Path, strategy: str) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"core dumps go elsewhere here: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("core dumps are limited here (ulimit -Hc)")
    program = """
        import faulthandler, os, resource
        import mp_core as mp
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        block = mp.Block(80)
        large = mp.Block(200 << 20)
        memoryview(large)[::4096] = bytes(200 << 8)
        os.abort()
    """
    done = run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)
    assert done.returncode == -6, done
    if any(path.name.startswith("qemu_") for path in tmp_path.iterdir()):
        pytest.skip("needs a core dump of the kernel; qemu-user writes one of its own")
    cores = [path for path in tmp_path.iterdir() if path.name.startswith(pattern.split("%")[0].rstrip("."))]
    assert cores, list(tmp_path.iterdir())
    assert sum(path.stat().st_blocks * 512 for path in cores) < 100 << 20


def test_a_thread_with_a_small_stack_can_share(tmp_path: Path, strategy: str) -> None:
    program = """
        import os
        import sys
        import threading
        import numpy as np
        import mp_all as mp

        least = 64 << 10 if sys.version_info < (3, 14) else 256 << 10  # it refuses to import anything in a smaller one
        threading.stack_size(max(least, os.sysconf("SC_THREAD_STACK_MIN")))
        sums = []

        def share():
            queue = mp.SimpleQueue()
            for _ in range(100):
                queue.put([np.ones(10_000), mp.Block(5000)])
                sums.append(queue.get()[0].sum())

        thread = threading.Thread(target=share)
        thread.start()
        thread.join()
        print(len(sums), set(sums) == {10_000})
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "100 True\n"
