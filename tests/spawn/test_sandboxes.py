"""The launcher works where a sandbox refuses what it would use: memfds, socket pairs, /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

TESTS = str(Path(__file__).parents[1])
RANKS = """
    import logging, os, sys
    import mp_spawn

    def multiply(rank, numbers, factor):
        return rank + factor * sum(numbers)

    def fail(rank):
        if rank == 1:
            raise ValueError("of rank 1")

    def bytes_of(rank):
        return b"x" * 3_000_000

    def killed(rank):
        if rank == 1:
            os.kill(os.getpid(), 9)

    def sleep(rank):
        import time
        time.sleep(3600)
"""
RUN = """
        expected = [30, 31, 32]
        method = sys.argv[1]
        assert mp_spawn.run(multiply, args=([1, 2, 3], 5), nprocs=3, start_method=method) == expected
        # Each rank executes an interpreter of its own if its environment has such a variable.
        env = {"PYTHONHASHSEED": "7"}
        assert mp_spawn.run(multiply, args=([1, 2, 3], 5), nprocs=3, start_method=method, env=env) == expected
        logging.disable()  # on a busy machine rank 0 may run yet, and its end is logged
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


def test_where_no_stack_for_signals_may_be_set_ranks_and_pools_run_without_stacks(start_method: str) -> None:
    program = """
        import sys
        from support.refused_calls import refuse
        import mp_all as mp
        import mp_spawn

        refuse("sigaltstack")
        with mp.get_context(sys.argv[1]).Pool(1) as pool:
            print(pool.apply(abs, (-7,)))
        print(mp_spawn.run(max, (0,), 2, start_method=sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), start_method]  # without -X faulthandler, which fails
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": TESTS}, capture_output=True, text=True, timeout=60)
    if done.stdout == "skip\n":
        pytest.skip("no seccomp filters here")
    assert (done.stdout, done.stderr) == ("7\n[0, 1]\n", "")


@pytest.mark.parametrize("calls", [["memfd_create"], ["socketpair"], ["memfd_create", "socketpair", "pidfd_open"]])
@pytest.mark.timeout(120)
def test_ranks_run_where_system_calls_are_refused(tmp_path: Path, start_method: str, calls: list[str]) -> None:
    refusal = f"        from support.refused_calls import refuse\n        refuse(*{calls!r})\n"
    ran(tmp_path, refusal, start_method)


@pytest.mark.parametrize("nprocs", [2, 3])
@pytest.mark.timeout(120)
def test_ranks_run_with_16_descriptors(tmp_path: Path, start_method: str, nprocs: int) -> None:
    program = f"""{RANKS}
    if __name__ == "__main__":
        import gc, logging, resource

        logging.disable()
        method, nprocs = sys.argv[1], int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        for _ in range(3):
            expected = [5 + rank for rank in range(nprocs)]
            assert mp_spawn.run(multiply, args=([1], 5), nprocs=nprocs, start_method=method) == expected
        assert mp_spawn.run(bytes_of, nprocs=nprocs, start_method=method)[1] == b"x" * 3_000_000
        try:
            mp_spawn.start_processes(fail, nprocs=nprocs, start_method=method)
        except mp_spawn.ProcessRaisedException as error:
            assert error.error_index == 1 and "of rank 1" in str(error)
        gc.collect()  # the pipes of the processes, which the traceback has
        try:
            mp_spawn.start_processes(killed, nprocs=nprocs, start_method=method)
        except mp_spawn.ProcessExitedException as error:
            print(error.signal_name)
        gc.collect()
        job = mp_spawn.start_processes(sleep, nprocs=nprocs, join=False, start_method=method)
        job.terminate()
        print([process.exitcode for process in job.processes] == [-15] * nprocs)
    """
    assert succeeded(run_script(tmp_path, program, start_method, str(nprocs))) == "SIGKILL\nTrue\n"


def test_ranks_of_a_killed_program_with_16_descriptors_end(tmp_path: Path, start_method: str) -> None:
    program = f"""{RANKS}
    def print_pid(rank):
        print(os.getpid(), flush=True)
        sleep(rank)

    if __name__ == "__main__":
        import resource, subprocess
        if len(sys.argv) == 3:
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
            mp_spawn.run(print_pid, nprocs=2, start_method=sys.argv[1])
        command = [sys.executable, __file__, sys.argv[1], "again"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
            pids = [int(job.stdout.readline()) for _ in range(2)]
            job.kill()
            assert len(set(pids)) == 2 and not job.stdout.read()  # at its end, they have ended
        print("ran")
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "ran\n"


@pytest.mark.parametrize("nprocs", [2, 3])
@pytest.mark.timeout(120)
def test_the_command_runs_with_16_descriptors(tmp_path: Path, start_method: str, nprocs: int) -> None:
    script = tmp_path / "script.py"
    # The first failure ends all ranks, so each waits until the others have printed.
    script.write_text(
        "import os, sys, time\n"
        "print(os.environ['RANK'], end='', flush=True)\n"
        "open(f'{sys.path[0]}/{os.environ[\"RANK\"]}.printed', 'w').close()\n"
        "while len([name for name in os.listdir(sys.path[0]) if name.endswith('.printed')]) < int(sys.argv[1]):\n"
        "    time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    program = f"""
        import resource, sys
        from mp_spawn.command.main import main

        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
            sys.exit(main([*sys.argv[1:], {str(script)!r}, {str(nprocs)!r}]))
    """
    done = run_script(tmp_path, program, "--start-method", start_method, "-n", str(nprocs), "--output", "inherit")
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout) == ["0", "1", "2"][:nprocs], done.stderr


WITHOUT_PIDFDS = {
    "few descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))",
    "refused": "refuse('pidfd_open')",
}


@pytest.mark.parametrize("how", WITHOUT_PIDFDS)
@pytest.mark.parametrize("what", ["become_another", "close_all"])
@pytest.mark.timeout(120)
def test_without_pidfds_ranks_that_close_their_descriptors_are_waited_for(
    tmp_path: Path, start_method: str, how: str, what: str
) -> None:
    program = f"""{RANKS}
    def become_another(rank, path):
        os.execlp("sh", "sh", "-c", f"echo > {{path}}.{{rank}}; exec sleep 300")

    def close_all(rank, path):
        os.closerange(3, 1000)
        open(f"{{path}}.{{rank}}", "w").close()
        sleep(rank)

    if __name__ == "__main__":
        import resource, time
        from support.refused_calls import refuse

        logging.disable()
        {WITHOUT_PIDFDS[how]}
        path = sys.argv[2]
        job = mp_spawn.start_processes({what}, (path,), nprocs=2, join=False, start_method=sys.argv[1])
        while not all(os.path.exists(f"{{path}}.{{rank}}") for rank in range(2)):
            time.sleep(0.01)
        assert not job.join(0.2) and len(job.sentinels) == 2
        job.processes[0].join(0.1)
        assert all(process.is_alive() for process in job.processes)
        os.kill(job.pids()[1], 10)
        try:
            job.join()
        except mp_spawn.ProcessExitedException as error:
            print(error.error_index, error.signal_name, [process.exitcode for process in job.processes])
    """
    done = run_script(tmp_path, program, start_method, str(tmp_path / "begun"), PYTHONPATH=TESTS)
    if done.stdout == "skip\n":
        pytest.skip("no seccomp filters here")
    assert succeeded(done) == "1 SIGUSR1 [-15, -10]\n"


@pytest.mark.parametrize("why", ["SIGTERM", "timeout", "failure"])
@pytest.mark.timeout(120)
def test_the_command_ends_programs_with_few_descriptors(tmp_path: Path, why: str) -> None:
    shell = f"""
        echo > {tmp_path}/$RANK
        while [ ! -e {tmp_path}/0 ] || [ ! -e {tmp_path}/1 ]; do sleep 0.05; done
        [ $RANK = 1 ] && [ {why} = failure ] && exit 5
        exec sleep 300
    """
    options = ["--timeout", "3"] if why == "timeout" else []
    command = ["-n", "2", *options, "--no-python", "sh", "-c", shell]
    program = """
        import resource, sys
        from mp_spawn.command.main import main

        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        sys.exit(main(sys.argv[1:]))
    """
    line = [sys.executable, "-c", textwrap.dedent(program), *command]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        try:
            until((tmp_path / "1").exists, 60)
            if why == "SIGTERM":
                running.terminate()
            _, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == {"SIGTERM": 128 + 15, "timeout": 124, "failure": 5}[why], err


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
