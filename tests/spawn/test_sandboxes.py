"""The launcher works where a sandbox refuses what it would use: memfds, socket pairs, /proc."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

TESTS = str(Path(__file__).parents[1])
RANKS = """
    import os, sys
    import mp_spawn

    def multiply(rank, numbers, factor):
        return rank + factor * sum(numbers)

    def fail(rank):
        if rank == 1:
            raise ValueError("of rank 1")
"""
RUN = """
        expected = [30, 31, 32]
        method = sys.argv[1]
        assert mp_spawn.run(multiply, args=([1, 2, 3], 5), nprocs=3, start_method=method) == expected
        # Each rank executes an interpreter of its own if its environment has such a variable.
        env = {"PYTHONHASHSEED": "7"}
        assert mp_spawn.run(multiply, args=([1, 2, 3], 5), nprocs=3, start_method=method, env=env) == expected
        try:
            mp_spawn.start_processes(fail, nprocs=2, start_method=method)
        except mp_spawn.ProcessRaisedException as error:
            assert error.error_index == 1
            print("ran")
"""


def ran(folder: Path, refusal: str, start_method: str) -> None:
    program = f"{RANKS}\n    if __name__ == '__main__':\n{refusal}{RUN}"
    said = succeeded(run_script(folder, program, start_method, PYTHONPATH=TESTS))
    if said == "skip\n":
        pytest.skip("no seccomp filters or user namespaces here")
    assert said == "ran\n"


@pytest.mark.parametrize("calls", [["memfd_create"], ["socketpair"], ["memfd_create", "socketpair", "pidfd_open"]])
@pytest.mark.timeout(120)
def test_ranks_run_where_system_calls_are_refused(tmp_path: Path, start_method: str, calls: list[str]) -> None:
    refusal = f"        from support.refused_calls import refuse\n        refuse(*{calls!r})\n"
    ran(tmp_path, refusal, start_method)


@pytest.mark.timeout(120)
def test_two_ranks_run_with_24_descriptors(tmp_path: Path, start_method: str) -> None:
    program = f"""{RANKS}
    if __name__ == "__main__":
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        for _ in range(3):
            assert mp_spawn.run(multiply, args=([1], 5), nprocs=2, start_method=sys.argv[1]) == [5, 6]
        print("ran")
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "ran\n"


WITHOUT_PROC = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        user, group = os.getuid(), os.getgid()
        CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 0x4000, 1 << 18
        if libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
            print("skip")
            sys.exit()
        if user:
            for name, line in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(line)
        if libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) or libc.mount(b"none", b"/proc", b"tmpfs", 0, None):
            print("skip")
            sys.exit()
        assert not os.path.exists("/proc/self")
"""


@pytest.mark.timeout(120)
def test_ranks_run_without_proc(tmp_path: Path, start_method: str) -> None:
    ran(tmp_path, WITHOUT_PROC, start_method)
