"""Tests beside other libraries and for a long time: pandas, joblib, torch, the soak."""

from __future__ import annotations

import os

import nox

from tools.sessions import GROUPS, ROOT, STRATEGIES, install_all

#: The sessions with the tag "nightly": long forms of what the tests do for seconds.
NIGHTLY = ("soak", "interrupts", "chaos", "extensions-asan", "fuzz", "model")


GLOBALS_OF_NOTEBOOKS = "tests/notebook/test_inherited_globals.py"
CONTAINERS = [
    "tests/containers",
    "tests/contract/test_when_shared.py",
    "tests/channel/test_plain_objects.py",
    GLOBALS_OF_NOTEBOOKS,
]


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """Run every session of the nightly workflow, one after the other; takes hours."""
    for name in NIGHTLY:
        session.notify(name)


@nox.session(default=False, tags=["nightly"])
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
@nox.parametrize("strategy", [nox.param(s, id=s) for s in STRATEGIES])
def containers(session: nox.Session, strategy: str) -> None:
    """Test containers of arrays with the real libraries: pandas, SciPy, scikit-learn, xarray, pyarrow, polars, JAX."""
    install_all(session, "test", "containers")
    env = {"MP_TEST_STRATEGY": strategy, "MP_SHARING_STRATEGY": strategy}
    session.run("pytest", *(session.posargs or CONTAINERS), env=env)
    session.run("python", "examples/05_dataframes.py", env=env)


@nox.session(default=False, tags=["ci"])
def adoption(session: nox.Session) -> None:
    """Test what docs/adoption.md shows: joblib, scikit-learn, dask and gymnasium on mp_all."""
    install_all(session, "test", "adoption")
    session.run("pytest", *(session.posargs or ["tests/adoption"]))


@nox.session(name="vector-envs", default=False)
def vector_envs(session: nox.Session) -> None:
    """Test the vector environments of docs/adoption.md, which need torch: stable-baselines3, tianshou, PettingZoo."""
    install_all(session, "test", "adoption")
    session.install(*GROUPS["vector-envs"])
    session.run("pytest", *(session.posargs or ["tests/adoption/test_adopted_programs.py"]))


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


@nox.session(name="pool-libraries", default=False)
def pool_libraries(session: nox.Session) -> None:
    """Compare pebble's and mpire's own tests under python -m mp_all and without: nox -s pool-libraries [-- pebble]."""
    install_all(session)
    # mpire 2.8.0 is the last version whose sdist has its tests; they need multiprocess.
    session.install("pebble==5.2.3", "mpire[dashboard]==2.8.0", "multiprocess", "pytest>=8")
    session.run("python", "tests/contract/cpython/libraries.py", *session.posargs)


@nox.session(default=False, tags=["ci"])
@nox.parametrize("strategy", [nox.param(s, id=s) for s in STRATEGIES])
def torch(session: nox.Session, strategy: str) -> None:
    """Test with torch: its tensors on mp-all's queues, then the same with mp_torch installed, DataLoader, examples."""
    install_all(session, "test", "torch")
    session.install("scikit-learn>=1.4")  # its digits are the data of the examples
    env = {"MP_TEST_STRATEGY": strategy, "MP_SHARING_STRATEGY": strategy}
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    session.run("pytest", "tests/beside_torch", "tests/contract/test_when_shared.py", GLOBALS_OF_NOTEBOOKS, env=env)
    session.run("pytest", "tests/cuda/test_torch.py", env=env)
    # mp_torch.install() is for the whole process: so these tests have one of their own.
    session.run("pytest", "tests/with_torch", "tests/packaging/test_examples.py", env=env)
