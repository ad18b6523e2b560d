"""The C library: its tests, sanitizers, fuzzers, other platforms, the model of its protocol."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import nox

from tools.sessions import GROUPS, ROOT, install_all

SANITIZERS = {
    "plain": [],
    "asan": ["SAN=address,undefined"],
    "tsan": ["SAN=thread"],
    "valgrind": ["WRAP=valgrind -q --error-exitcode=9"],
}
# The tests wait more than they compute.
PARALLEL = ["-j", str(3 * (os.cpu_count() or 1)), "-k", "--output-sync=target", "--no-print-directory"]
CHECK = ["make", "-C", "libshm", *PARALLEL, "check"]
# The tests of all that parses what another process has written.
READS_MESSAGES = [
    "tests/containers/test_formats.py",
    "tests/reductions/test_damaged_handles.py",
    "tests/reductions/test_buffers.py",
    "tests/channel/test_atom_pickles.py",
    "tests/channel/test_functions.py",
    "tests/channel/test_plain_objects.py",
    "tests/core/test_large_bytes.py",
    "tests/cuda/test_lifetime.py",
    "tests/cuda/test_one_message.py",
    "tests/cuda/test_sharing.py",
    "tests/core/test_picklers.py",
    "tests/reductions/test_fast_path.py",
    "tests/reductions/test_many_arrays.py",
    "tests/reductions/test_scalars.py",
    "tests/reductions/test_small_messages.py",
    "tests/reductions/test_views.py",
    "tests/reductions/test_whole_messages.py",
]


@nox.session(python=False)
@nox.parametrize(
    "sanitizer",
    [*(nox.param(s, id=s, tags=["ci"] * (s != "valgrind")) for s in SANITIZERS), nox.param("every", id="every")],
)
def libshm(session: nox.Session, sanitizer: str) -> None:
    """Test the C library, plain, under sanitizers or in valgrind; "every": plain and under the sanitizers at once."""
    build = Path(session.create_tmp()).resolve() / "libshm"
    if sanitizer == "every":
        session.run(*CHECK[:-1], "every", f"BUILD={build}", external=True)
    else:
        session.run(*CHECK, f"BUILD={build / sanitizer}", *SANITIZERS[sanitizer], external=True)


@nox.session(name="extensions-asan", default=False, tags=["nightly"])
def extensions_asan(session: nox.Session) -> None:
    """Test what the C extensions read from messages under the address and undefined behaviour sanitizers."""
    install_all(session, "test", "build", "containers")
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
    packages = ["./packages/mp-core", "./packages/mp-reductions", "./packages/mp-cuda", "./packages/mp-torch"]
    build = ["--force-reinstall", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    session.install(*build, *packages, env={"CFLAGS": flags, "LDFLAGS": flags})
    # The libraries of the sanitizers, before anything else; every object is one of malloc's.
    cc = ["cc", "-print-file-name=libasan.so"], ["cc", "-print-file-name=libubsan.so"]
    libraries = [str(session.run(*words, external=True, silent=True)).strip() for words in cc]
    asan = ["detect_leaks=0", "verify_asan_link_order=0", "allocator_may_return_null=1", "max_allocation_size_mb=4096"]
    env = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": ":".join(asan),
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    session.run("pytest", *(session.posargs or READS_MESSAGES), env=env)


@nox.session(python=False, default=False)
def musl(session: nox.Session) -> None:
    """Test the C library against musl, with musl-gcc (on Debian or Ubuntu: apt-get install musl-tools)."""
    build = Path(session.create_tmp()).resolve() / "libshm" / "musl"
    # musl brings no headers of the kernel: those of this machine come last.
    headers = f"-idirafter /usr/include -idirafter /usr/include/{platform.machine()}-linux-gnu"
    session.run(*CHECK, f"BUILD={build}", f"CC=musl-gcc {headers}", external=True)


@nox.session(python=False, default=False, tags=["nightly"])
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
    """Compile libshm for other Linux systems, without running it: nox -s cross [-- aarch64-linux-gnu.2.28]."""
    session.install(*GROUPS["cross"])
    session.run("python", "-m", "tools.cross", *session.posargs)


@nox.session(default=False, tags=["nightly"])
def model(session: nox.Session) -> None:
    """Check references and channels on models of Arm's memory, with kills and faults: nox -s model [-- --short]."""
    session.install(*GROUPS["cross"])
    session.run("python", "-m", "tools.model", *session.posargs)
