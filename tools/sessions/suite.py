"""The test suite of this project: every interpreter, strategy, NumPy, driver and node."""

from __future__ import annotations

import sys
from pathlib import Path

import nox

from tools.sessions import GROUPS, PACKAGES, ROOT, STRATEGIES, WHEELS, install_all

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PROGRAMS = "tests/contract/programs"
# The oldest version that mp-cuda supports, the last 12.9 (without `.reserved`), one in between, and the newest.
BINDINGS = {
    "12.9.1": "cuda-bindings==12.9.1",
    "12.9": "cuda-bindings==12.9.*",
    "13.0": "cuda-bindings==13.0.*",
    "newest": "cuda-bindings<14",
}
CONTRACT_OF_SHARING = [
    "tests/contract/test_s1_shared_is_shared.py",
    "tests/contract/test_s2_private_is_moved.py",
    "tests/contract/test_s3_arrays_arrive_as_they_left.py",
    "tests/contract/test_s4_containers.py",
    "tests/contract/test_s5_returned_is_the_same_memory.py",
]
# The contract of sharing, and behaviour that does not depend on shared memory, without libshm.
WITHOUT_LIBSHM = [
    "tests/without_libshm",
    *CONTRACT_OF_SHARING,
    "tests/contract/test_private_arrays_always_arrive.py",
    "tests/contract/test_pools_survive_receive_errors.py",
    "tests/core/test_block.py",
    "tests/core/test_fork.py",
    "tests/core/test_lease.py",
    "tests/core/test_leases_and_fork.py",
    "tests/core/test_memory_returns.py",
    "tests/contract/test_names.py",
    "tests/contract/test_public_names.py",
    "tests/core/test_thread_names.py",
    "tests/pool/test_errors.py",
    "tests/pool/test_in_flight.py",
    "tests/spawn/test_exit_status_of_ranks.py",
    "tests/spawn/test_torch_surface.py",
]


# Tagged "ci": .github/workflows/ci.yml makes a job of each, and holds no list of its own.
@nox.session(python=PYTHONS)
@nox.parametrize("strategy", [*(nox.param(s, id=s, tags=["ci"]) for s in STRATEGIES), nox.param("every", id="every")])
def tests(session: nox.Session, strategy: str) -> None:
    """
    Run the test suite under one interpreter and one sharing strategy, or every; start methods are a fixture inside.

    Tests that do not depend on the strategy run under the first one only.
    """
    install_all(session, "test", "demo", "bench", "build")
    strategies = STRATEGIES if strategy == "every" else [strategy]
    series = {name: [f"MP_TEST_STRATEGY={name}", f"MP_SHARING_STRATEGY={name}"] for name in strategies}
    if session.posargs:
        for name in strategies:
            session.run("pytest", *session.posargs, env=dict(word.split("=") for word in series[name]))
        return
    words: list[str] = []
    for name in strategies:
        selected = [] if name == "file_descriptor" else ["--only-strategy-tests"]
        words += ["--and", *series[name], *selected, "tests", f"--ignore={PROGRAMS}"]
    session.run("python", "-m", "tools.lanes", *words[1:])


@nox.session(name="tests-without-libshm", tags=["ci"])
def tests_without_libshm(session: nox.Session) -> None:
    """Test portable sharing, as on macOS and Windows: nothing is compiled. On those systems, what can run there."""
    env = {"MP_WITHOUT_LIBSHM": "1"}
    session.install(*GROUPS["test"], *GROUPS["build"])
    session.install("--no-cache-dir", "--force-reinstall", "--no-deps", *WHEELS, env=env)
    session.install(*WHEELS, env=env)
    compiled = [str(path) for path in Path(session.virtualenv.location).glob("lib/*/site-packages/mp_*/*.so")]
    if compiled:
        session.error(f"libshm was compiled: {compiled}")
    if sys.platform == "linux":
        session.run("pytest", *(session.posargs or WITHOUT_LIBSHM), env=env)
        for stand_in in () if session.posargs else ("macos_memory", "handles"):
            path = str(ROOT / "tests/without_libshm" / stand_in)  # for the memory of macOS, and of Windows
            session.run("pytest", *CONTRACT_OF_SHARING, env={**env, "PYTHONPATH": path})
    here = ["--confcutdir=tests/portable_systems", "-o", "pythonpath=tests"]
    session.run("pytest", *here, "tests/portable_systems", env=env)


@nox.session(name="tests-without-channels", tags=["ci"])
def tests_without_channels(session: nox.Session) -> None:
    """Test pipes and queues with MP_CHANNEL=0, that is, with those of the standard library."""
    install_all(session, "test")
    tests = session.posargs or ["tests/core", "tests/contract", "tests/pool", f"--ignore={PROGRAMS}"]
    session.run("pytest", *tests, env={"MP_CHANNEL": "0"})


@nox.session(name="tests-wheels", default=False)
def tests_wheels(session: nox.Session) -> None:
    """Test the wheels in a folder, on this machine and its C library: nox -s tests-wheels -- dist."""
    folder, *arguments = session.posargs
    session.install(*GROUPS["test"], *GROUPS["demo"], *GROUPS["build"])
    session.install("--find-links", folder, "--only-binary", ",".join(PACKAGES), *PACKAGES)
    session.run("python", "-m", "tools.lanes", *(arguments or ["tests/core", "tests/reductions", "tests/channel"]))


@nox.session(default=False, tags=["nightly"])
def interrupts(session: nox.Session) -> None:
    """Interrupt every point of every scene (tests/interrupts) by a signal handler that raises; takes an hour."""
    install_all(session, "test")
    session.run("pytest", "tests/interrupts", *session.posargs, env={"MP_INTERRUPTS": "all"})


@nox.session(name="tests-debian", python=False, default=False)
def tests_debian(session: nox.Session) -> None:
    """
    Run the test suite on Debian unstable's Python: nox -s tests-debian -- 3.14 [arguments of pytest].

    It needs root: debootstrap makes the distribution in a temporary folder, and the tests run in it by chroot.
    """
    session.run(sys.executable, "-m", "tools.debian", session.create_tmp(), *session.posargs, external=True)


@nox.session(name="tests-other", default=False)
@nox.parametrize("system", [nox.param(s, id=s) for s in ("aarch64-glibc", "aarch64-musl", "x86_64-musl")])
def tests_other(session: nox.Session, system: str) -> None:
    """
    Run the tests on aarch64, under qemu-user, or on musl: nox -s "tests-other(x86_64-musl)" [-- arguments of pytest].

    It needs root and debootstrap. aarch64 takes hours: give the arguments of pytest for a part.
    """
    session.install(*GROUPS["build"], *GROUPS["cross"])
    session.run("python", "-m", "tools.other_systems", session.create_tmp(), system, *session.posargs)


@nox.session(name="cuda-stub", default=False)
@nox.parametrize("bindings", [nox.param(b, id=b, tags=["ci"]) for b in BINDINGS])
def cuda_stub(session: nox.Session, bindings: str) -> None:
    """Test mp-cuda on the stub driver, not a GPU, with old and new bindings, numba-cuda, cuda.core, joblib."""
    install_all(session, "test")
    session.install("numba-cuda>=0.30", "joblib>=1.4")
    session.install("--upgrade", "--no-deps", BINDINGS[bindings])
    # With 12.9.1 numba-cuda 0.30 needs libcudart, and cuda.core 1.2 crashes when its process ends.
    libraries = ["-k", "not real_"] if bindings == "12.9.1" else []
    session.run("pytest", "tests/cuda", *libraries, *session.posargs)


@nox.session(default=False)
def cuda(session: nox.Session) -> None:
    """Test and measure mp-cuda on a GPU; fail without one. nox -s cuda -- [--with cupy-cuda13x] [--write]"""
    install_all(session, "test")
    session.install("numba-cuda>=0.30")
    args = list(session.posargs)
    while "--with" in args:
        at = args.index("--with")
        session.install(args[at + 1])
        del args[at : at + 2]
    session.run("python", "-m", "tools.gpu", "--installed", *args)


@nox.session(name="gpu-wheels", default=False)
def gpu_wheels(session: nox.Session) -> None:
    """
    Fill build/gpu-wheels for a machine with a GPU and no network, where `python3 -m tools.gpu` does the rest.

    nox -s gpu-wheels -- [--python 3.12] [--with numba-cuda] [--without numpy]
    """
    session.install(*GROUPS["build"], *GROUPS["cross"])
    session.run("python", "-m", "tools.gpu_wheels", "build/gpu-wheels", *session.posargs)


@nox.session(python=PYTHONS, default=False)
def contract(session: nox.Session) -> None:
    """Run CPython's tests on mp_all and multiprocessing: nox -s contract-3.11 [-- fork] [-- futures --json FILE]."""
    install_all(session)
    session.run("python", "tests/contract/cpython/compare.py", *session.posargs)


def on_numpy(session: nox.Session, *numpy: str) -> None:
    install_all(session, "test")
    session.install("--upgrade", *numpy)
    session.run("python", "-c", "import numpy, sys; print('NumPy', numpy.__version__, 'on Python', sys.version)")
    session.run("pytest", *(session.posargs or ["tests/core", "tests/reductions", "tests/contract"]))


@nox.session(name="numpy-1.26", python="3.11", default=False)
def numpy_lowest(session: nox.Session) -> None:
    """Test with the lowest supported NumPy, on the lowest Python."""
    on_numpy(session, "numpy==1.26.*")


@nox.session(name="numpy-newest", python="3.13", default=False)
def numpy_newest(session: nox.Session) -> None:
    """Test with the newest NumPy, pre-releases included."""
    on_numpy(session, "--pre", "numpy")


@nox.session(default=False)
@nox.parametrize("kind", [nox.param("ray", id="ray", tags=["ci"]), nox.param("mpi", id="mpi")])
def engines(session: nox.Session, kind: str) -> None:
    """
    Test ranks on several nodes: on a Ray cluster of three, or under Open MPI's and MPICH's mpirun, and Slurm's srun.

    Both mpiruns are installed from PyPI. Slurm is used if it is there and this is root (on Debian or Ubuntu: apt-get
    install slurmd slurmctld slurm-client munge).
    """
    install_all(session, "test", *(["ray"] if kind == "ray" else []))
    if kind == "ray":
        session.run("pytest", *(session.posargs or ["tests/engines"]))
        return
    env = {}
    for name in ("openmpi", "mpich"):
        prefix = Path(session.create_tmp()).resolve() / name
        session.install("--prefix", str(prefix), name)
        env[f"MPIRUN_{name.upper()}"] = str(prefix / "bin" / "mpirun")
    tests = ["tests/engines/test_command_on_nodes.py", "tests/engines/test_slurm.py"]
    session.run("pytest", *(session.posargs or tests), env=env)


@nox.session(default=False)
def frozen(session: nox.Session) -> None:
    """Freeze a program with PyInstaller, in a folder and in one file, and run it."""
    install_all(session, "test")
    session.install("pyinstaller>=6")
    session.run("pytest", "tests/packaging/test_frozen_programs.py", *session.posargs)


@nox.session(default=False, tags=["nightly"])
def chaos(session: nox.Session) -> None:
    """Play programs for minutes while their threads lose the processor in the worst places (`-- SECONDS SEED`)."""
    install_all(session, "test")
    seconds, *seed = session.posargs or ["600"]
    env = {"MP_CHAOS": seconds, **({"MP_CHAOS_SEED": seed[0]} if seed else {})}
    session.run("pytest", "-o", "faulthandler_timeout=0", "-s", "tests/chaos", "-k", "minutes", env=env)


@nox.session(default=False)
def programs(session: nox.Session) -> None:
    """Test published programs and libraries from PyPI with their import of multiprocessing changed."""
    install_all(session, "test", "programs")
    session.run("pytest", "tests/contract/programs", *session.posargs)
