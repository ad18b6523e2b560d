"""Sessions for all work on this repository. `nox -l` is the help."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-cuda", "mp-torch", "mp-all"]
WHEELS = [f"./packages/{name}" for name in PACKAGES]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PROGRAMS = "tests/contract/programs"
STRATEGIES = [nox.param(s, id=s) for s in ("file_descriptor", "file_system")]
SANITIZERS = {
    "plain": [],
    "asan": ["SAN=address,undefined"],
    "tsan": ["SAN=thread"],
    "valgrind": ["WRAP=valgrind -q --error-exitcode=9"],
}
# The oldest version that mp-cuda supports, the last 12.9 (without `.reserved`), one in between, and the newest.
BINDINGS = {
    "12.9.1": "cuda-bindings==12.9.1",
    "12.9": "cuda-bindings==12.9.*",
    "13.0": "cuda-bindings==13.0.*",
    "newest": "cuda-bindings<14",
}

# Tests of behaviour that does not depend on shared memory run without the engine, too.
WITHOUT_ENGINE = [
    "tests/without_engine",
    "tests/contract/test_public_names.py",
    "tests/core/test_thread_names.py",
    "tests/pool/test_errors.py",
    "tests/spawn/test_exit_status_of_ranks.py",
    "tests/spawn/test_torch_surface.py",
]

GROUPS = nox.project.load_toml("pyproject.toml")["dependency-groups"]

# Interpreters of pyenv, if installed: nox looks for python3.12 and so on on PATH.
_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *(str(p) for p in sorted(_pyenv.glob("3.*/bin")))])

nox.needs_version = ">=2024.4.15"
nox.options.reuse_existing_virtualenvs = True
# A session whose interpreter is missing fails and names it.
nox.options.error_on_missing_interpreters = True
# "The tests" of the README: on the interpreter that runs nox, both strategies.
nox.options.sessions = [
    "lint",
    "docs",
    "libshm(plain)",
    "libshm(asan)",
    "libshm(tsan)",
    *(f"tests-{HERE}({s})" for s in ("file_descriptor", "file_system")),
    "alone(mp-spawn)",
    "alone(mp-pool)",
]


def install_all(session: nox.Session, *groups: str) -> None:
    """Install the seven packages as a user would, from wheels, and the requirements of the groups."""
    if groups:
        session.install(*(req for group in groups for req in GROUPS[group]))
    # A separate step and never from a cache: the version does not change during development.
    session.install("--no-cache-dir", "--force-reinstall", "--no-deps", *WHEELS)
    session.install(*WHEELS)


# Tagged "ci": .github/workflows/ci.yml makes a job of each, and holds no list of its own.
@nox.session(python=PYTHONS, tags=["ci"])
@nox.parametrize("strategy", STRATEGIES)
def tests(session: nox.Session, strategy: str) -> None:
    """Run the test suite under one interpreter and one sharing strategy; start methods are a fixture inside."""
    install_all(session, "test", "demo", "bench", "build")
    env = {"MP_TEST_STRATEGY": strategy, "MP_SHARING_STRATEGY": strategy}
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    # Tests that do not depend on the strategy run once, and the launcher's run in a process without other children.
    if strategy == "file_system":
        half = ["tests/core", "tests/crash"], ["tests/reductions", "tests/contract", f"--ignore={PROGRAMS}"]
        lanes = [[["--only-strategy-tests", *paths]] for paths in half]
    else:
        # On a stub driver, not a GPU; in a separate process, since the stub becomes the process's CUDA driver.
        separate = [["tests/packaging", "tests/bench", "tests/pool"], ["tests/spawn", "tests/engines"], ["tests/cuda"]]
        lanes = [[["tests", *(f"--ignore={path}" for paths in (*separate, [PROGRAMS]) for path in paths)]], separate]
    in_lanes(session, lanes, env)


def in_lanes(session: nox.Session, lanes: list[list[list[str]]], env: dict[str, str]) -> None:
    """Run pytest with each list of arguments: those of a lane in order, the lanes at once."""
    texts = [" ; ".join(shlex.join(["pytest", *arguments]) for arguments in lane) for lane in lanes]
    session.run("python", "-m", "tools.lanes", *texts, env=env)


@nox.session(name="tests-without-engine", tags=["ci"])
def tests_without_engine(session: nox.Session) -> None:
    """Test without shared memory, as on macOS and Windows: nothing is compiled, arrays travel by pickle."""
    env = {"MP_WITHOUT_ENGINE": "1"}
    session.install(*GROUPS["test"], *GROUPS["build"])
    session.install("--no-cache-dir", "--force-reinstall", "--no-deps", *WHEELS, env=env)
    session.install(*WHEELS, env=env)
    compiled = [str(path) for path in Path(session.virtualenv.location).glob("lib/*/site-packages/mp_*/*.so")]
    if compiled:
        session.error(f"the engine was compiled: {compiled}")
    session.run("pytest", *(session.posargs or WITHOUT_ENGINE), env=env)


@nox.session(name="tests-debian", python=False, default=False)
def tests_debian(session: nox.Session) -> None:
    """
    Run the test suite on Debian unstable's Python: nox -s tests-debian -- 3.14 [arguments of pytest].

    It needs root: debootstrap makes the distribution in a temporary folder, and the tests run in it by chroot.
    """
    session.run(sys.executable, "-m", "tools.debian", session.create_tmp(), *session.posargs, external=True)


@nox.session(name="tests-emulated", default=False)
def tests_emulated(session: nox.Session) -> None:
    """
    Run the tests on Debian 13 for arm64 under qemu-user: nox -s tests-emulated [-- arguments of pytest].

    It needs root, debootstrap and qemu-user-static, and takes an hour.
    """
    session.install(*GROUPS["build"], *GROUPS["cross"])
    session.run("python", "-m", "tools.emulated", session.create_tmp(), *session.posargs)


@nox.session(name="cuda-stub", default=False)
@nox.parametrize("bindings", [nox.param(b, id=b) for b in BINDINGS])
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
    """Test ranks on several nodes: on a Ray cluster of three, or under mpirun, which has to be installed."""
    install_all(session, "test", *(["ray"] if kind == "ray" else []))
    if kind == "mpi" and shutil.which("mpirun") is None:
        session.error("mpirun is missing (on Debian or Ubuntu: apt-get install openmpi-bin)")
    tests = ["tests/engines"] if kind == "ray" else ["tests/engines/test_command_on_nodes.py"]
    session.run("pytest", *(session.posargs or tests))


@nox.session(default=False)
def programs(session: nox.Session) -> None:
    """Test published programs and libraries from PyPI with their import of multiprocessing changed."""
    install_all(session, "test", "programs")
    session.run("pytest", "tests/contract/programs", *session.posargs)


@nox.session(python=False)
@nox.parametrize("sanitizer", [nox.param(s, id=s, tags=["ci"] * (s != "valgrind")) for s in SANITIZERS])
def libshm(session: nox.Session, sanitizer: str) -> None:
    """Test the C library, plain, under sanitizers or in valgrind."""
    build = Path(session.create_tmp()).resolve() / "libshm" / sanitizer
    session.run("make", "-C", "libshm", "check", f"BUILD={build}", *SANITIZERS[sanitizer], external=True)


@nox.session(python=False, default=False)
def musl(session: nox.Session) -> None:
    """Test the C library against musl, with musl-gcc (on Debian or Ubuntu: apt-get install musl-tools)."""
    build = Path(session.create_tmp()).resolve() / "libshm" / "musl"
    # musl brings no headers of the kernel: those of this machine come last.
    headers = f"-idirafter /usr/include -idirafter /usr/include/{platform.machine()}-linux-gnu"
    session.run("make", "-C", "libshm", "check", f"BUILD={build}", f"CC=musl-gcc {headers}", external=True)


@nox.session(python=False, default=False)
def fuzz(session: nox.Session) -> None:
    """
    Fuzz the parser with ten million handles and the manager with ten million frames: nox -s fuzz [-- COUNT].

    Seeded mutations everywhere; libFuzzer, guided by coverage, for five minutes more where there is clang.
    """
    build = Path(session.create_tmp()).resolve() / "libshm" / "asan"
    count = session.posargs[0] if session.posargs else "10000000"
    make = ["make", "-C", "libshm", f"BUILD={build}", "SAN=address,undefined"]
    env = {"FUZZ_COUNT": count, "SHM_MANAGER": str(build / "shm-manager")}
    session.run(
        *make, "all", str(build / "tests/test_fuzz_handle"), str(build / "tests/test_fuzz_manager"), external=True
    )
    corpus = ROOT / "libshm" / "fuzz" / "corpus"
    for target in ("handle", "manager"):
        known = sorted(str(path) for path in (corpus / target).iterdir())
        session.run(str(build / f"tests/test_fuzz_{target}"), *known, env=env, external=True)
    if shutil.which("clang") is None:
        session.log("libFuzzer was not run: clang is missing (on Debian or Ubuntu: apt-get install clang)")
        return
    session.run("make", "-C", "libshm", f"BUILD={build}", "fuzzers", external=True)
    for target in ("handle", "manager"):
        found = Path(session.create_tmp()).resolve() / f"corpus-{target}"
        found.mkdir(exist_ok=True)
        env["MPSHM_RUNTIME_DIR"] = session.create_tmp()
        session.run(
            str(build / "fuzz" / target),
            "-max_total_time=300",
            "-print_final_stats=1",
            str(found),
            str(corpus / target),
            env=env,
            external=True,
        )


@nox.session(default=False, tags=["ci"])
def cross(session: nox.Session) -> None:
    """Compile libshm for other platforms, without running it: nox -s cross [-- aarch64-macos]."""
    session.install(*GROUPS["cross"])
    session.run("python", "-m", "tools.cross", *session.posargs)


@nox.session(default=False)
def model(session: nox.Session) -> None:
    """Check the protocol of references on a model of Arm's memory, with kills and seeded faults: nox -s model."""
    session.install(*GROUPS["cross"])
    session.run("python", "-m", "tools.model", *session.posargs)


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Run the long forms of tests: more kills, more ranks, ten minutes of a mixed stream."""
    install_all(session, "test")
    session.install("tqdm>=4.66")
    # pytest dumps the stacks of running threads after 100 s, which may crash CPython.
    pytest = ["pytest", "-o", "faulthandler_timeout=0"]
    session.run(*pytest, "tests/crash", "tests/spawn", "tests/pool", "--timeout", "1200", env={"MP_SOAK": "1"})
    # In a separate process, on the stub driver: a hundred thousand arrays through three processes.
    session.run(*pytest, "tests/cuda", "--timeout", "3600", env={"MP_SOAK": "1"})
    session.run("python", "-m", "benchmarks", "P11", "--long")


@nox.session(default=False)
@nox.parametrize("strategy", STRATEGIES)
def containers(session: nox.Session, strategy: str) -> None:
    """Test containers of arrays with the real libraries: pandas, SciPy, scikit-learn, xarray, pyarrow."""
    install_all(session, "test", "containers")
    env = {"MP_TEST_STRATEGY": strategy, "MP_SHARING_STRATEGY": strategy}
    session.run("pytest", *(session.posargs or ["tests/containers", "tests/contract/test_when_shared.py"]), env=env)
    session.run("python", "examples/05_dataframes.py", env=env)


@nox.session(default=False, tags=["ci"])
def adoption(session: nox.Session) -> None:
    """Test what docs/adoption.md shows: joblib, scikit-learn, dask and gymnasium on mp_all."""
    install_all(session, "test", "adoption")
    session.run("pytest", *(session.posargs or ["tests/adoption"]))


@nox.session(default=False)
def joblib(session: nox.Session) -> None:
    """Run joblib's and scikit-learn's own tests of parallelism with the backend mp_all as joblib's default."""
    install_all(session, "test", "adoption")
    pytest = ["pytest", "-c", os.devnull, "-p", "joblib_default", "-p", "no:cacheprovider", "-q", "-W", "ignore"]
    with session.chdir(session.create_tmp()):  # away from this project's conftest
        env = {"PYTHONPATH": str(ROOT / "tests" / "adoption")}
        session.run(*pytest, "--timeout", "120", "--pyargs", "joblib.test.test_parallel", env=env)
        theirs = ["sklearn.utils.tests.test_parallel", "sklearn.ensemble.tests.test_bagging"]
        theirs += ["sklearn.model_selection.tests.test_validation", "sklearn.tests.test_multioutput"]
        session.run(*pytest, "--timeout", "300", "-k", "parallel or n_jobs", "--pyargs", *theirs, env=env)


@nox.session(default=False)
@nox.parametrize("strategy", STRATEGIES)
def torch(session: nox.Session, strategy: str) -> None:
    """Test with torch: its tensors on mp-all's queues, then the same with mp_torch installed, DataLoader, examples."""
    install_all(session, "test", "torch")
    session.install("scikit-learn>=1.4")  # its digits are the data of the examples
    env = {"MP_TEST_STRATEGY": strategy, "MP_SHARING_STRATEGY": strategy}
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    session.run("pytest", "tests/beside_torch", "tests/contract/test_when_shared.py", env=env)
    # mp_torch.install() is for the whole process: so these tests have one of their own.
    session.run("pytest", "tests/with_torch", "tests/packaging/test_examples.py", env=env)


@nox.session(tags=["ci"])
@nox.parametrize("package", [nox.param(p, id=p) for p in PACKAGES])
def alone(session: nox.Session, package: str) -> None:
    """Test one package from sdists in a fresh environment: it works and installs only its dependencies."""
    work = Path(session.create_tmp()).resolve()
    session.install(*GROUPS["build"])
    needs = PACKAGES if package == "mp-all" else sorted({"mp-core", package})
    session.run("python", "-m", "tools.distributions", "--sdist", f"{work}/sdists", *needs, silent=True)
    session.run("python", "-m", "tools.installations", f"{work}/sdists", "--work", str(work), "--sdist", package)


@nox.session(tags=["ci"])
def docs(session: nox.Session) -> None:
    """Build the documentation in build/docs; a warning is an error. It needs no GPU and no network."""
    install_all(session, "docs")
    out = session.posargs or ["build/docs"]
    session.run("sphinx-build", "-q", "-E", "-b", "html", "-W", "--keep-going", "docs", *out)
    session.log(f"now: open {out[0]}/index.html")


@nox.session(default=False, tags=["ci"])
def build(session: nox.Session) -> None:
    """
    Build, check and install all sdists and wheels for the upload, in dist/: nox -s build [-- --short].

    It installs on each interpreter without an index; `-- --python 3.12` selects interpreters.
    """
    session.install(*GROUPS["build"], *GROUPS["wheels"])
    session.run("python", "-m", "tools.distributions", "dist")
    work = Path(session.create_tmp()).resolve()
    session.run("python", "-m", "tools.installations", "dist", "--work", str(work), *session.posargs)


@nox.session(name="other-wheels", default=False)
def other_wheels(session: nox.Session) -> None:
    """Build the compiled wheels for aarch64 and for musl with zig, in dist-other/; they are not run."""
    session.install(*GROUPS["build"], *GROUPS["cross"])
    session.run("python", "-m", "tools.other_wheels", "dist-other")


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Check with ruff, mypy --strict, clang-format and the prose linter; change nothing."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [str(p) for p in sorted((ROOT / "packages").glob("*/src/mp_*"))]
    path = os.pathsep.join(str(p) for p in sorted((ROOT / "packages").glob("*/src")))
    session.run("mypy", "--strict", *sources, "tests/typing", env={"MYPYPATH": path})
    session.run("clang-format", "--dry-run", "-Werror", *c_files())
    session.run("python", "-m", "tools.prose")


@nox.session(name="typing", default=False, tags=["ci"])
def typing_(session: nox.Session) -> None:
    """Check a user's program with mypy --strict and pyright, against the installed packages."""
    install_all(session, "typing")
    session.run("mypy", "--strict", "tests/typing")
    # It finds the packages by the interpreter on PATH. With --pythonpath, --verifytypes of 1.1.414 finds none.
    session.run("pyright", "tests/typing")
    session.run("pyright", "--verifytypes", "mp_all", "--ignoreexternal")


@nox.session(name="format", default=False)
def format_(session: nox.Session) -> None:
    """Format Python and C in place."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", "--fix-only", ".")
    session.run("ruff", "format", ".")
    session.run("clang-format", "-i", *c_files())


def c_files() -> list[str]:
    return [str(p) for pattern in ("libshm/**/*.[ch]", "packages/*/native/*.[ch]") for p in sorted(ROOT.glob(pattern))]


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Filter a picture tile by tile, on multiprocessing and with the one import changed."""
    install_all(session, "demo")
    session.run("python", "examples/tiles/demo.py", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks: nox -s bench -- [--torch] [--peers] [--write] [--compare [--fail-above RATIO]]"""
    install_all(session, "bench")
    # Peers are large and not dependencies: the tables list uninstalled ones as missing.
    large = [group for group in ("torch", "peers") if f"--{group}" in session.posargs]
    session.run("python", "-m", "benchmarks.install", *large)
    args = [arg for arg in session.posargs if arg not in ("--torch", "--peers")]
    session.run("python", "-m", "benchmarks", *args)


@nox.session(default=False)
def comparison(session: nox.Session) -> None:
    """Kill workers of several libraries' pools and write what happened into docs/pool.md."""
    install_all(session, "test", "programs")
    session.run("python", "-m", "benchmarks.install", "peers")  # Ray; if it cannot be installed, the table says so
    session.run("python", "-m", "benchmarks.comparison", "--write")


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Make a virtual environment in .venv with the seven packages editable and every tool."""
    python = ROOT / ".venv" / "bin" / "python"
    session.run("python", "-m", "venv", ".venv")
    # These groups are large, and belong to one session each.
    own_sessions = ("adoption", "containers", "torch", "peers", "ray", "wheels", "cross", "docs", "typing", "version")
    groups = [group for name, group in GROUPS.items() if name not in own_sessions]
    tools = sorted({req for group in groups for req in group} | {"nox", "editables"})
    session.run(str(python), "-m", "pip", "install", "-q", *tools, external=True)
    editable = [arg for wheel in WHEELS for arg in ("-e", wheel)]
    session.run(str(python), "-m", "pip", "install", "-q", "--no-build-isolation", *editable, external=True)
    session.log("now: . .venv/bin/activate && pytest")


@nox.session(default=False)
def bump(session: nox.Session) -> None:
    """Set the one version everywhere: nox -s bump -- X.Y.Z"""
    session.install(*GROUPS["version"])
    session.run("bump-my-version", "bump", "--new-version", *session.posargs)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Do a release except for the upload: nox -s release -- X.Y.Z [--dry-run]."""
    session.install(*GROUPS["build"], *GROUPS["wheels"], *GROUPS["version"])
    session.run("python", "-m", "tools.release", *session.posargs)
