"""Test and measure mp-cuda on a machine with a GPU and without a network: `python3 -m tools.gpu`.

It needs Python >= 3.11 with pip, and the folder that `nox -s gpu-wheels` has filled on another machine. Packages that
the machine has stay in use; the others are installed from the folder into a temporary one. It ends within ten minutes
and writes what docs/cuda.md shows: card, driver and bindings, each behaviour, the times. Without a GPU it runs no test,
says so, and exits with 5, as pytest does when it has run none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.gpu_report import Results, behaviours, markdown, outcomes, write_into

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "cuda.md"
LIMIT = 540.0  # seconds for all
FOR_BENCHMARK = 200.0  # of them
NO_GPU = 5
REPORT = "import json, mp_cuda; print(json.dumps([mp_cuda.is_available(), list(mp_cuda.device_report())]))"
LIBRARIES = ["mp-all", "cuda-bindings", "cuda-core", "numpy", "torch", "cupy-cuda13x", "cupy-cuda12x", "numba-cuda"]


class Machine:
    """Runs commands until the time is up."""

    def __init__(self, limit: float, out: Path) -> None:
        self.end = time.monotonic() + limit
        self.out = out
        self.environment = dict(os.environ, PYTHONUNBUFFERED="1")

    def run(self, *command: str, log: str, limit: float = 1e9) -> int:
        """Run *command*, write its output into the file *log* too, and return its exit code; 124 after the limit."""
        left = min(limit, self.end - time.monotonic())
        print("$", *command, f"({left:.0f} s)", flush=True)
        with open(self.out / log, "w+") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=self.environment, cwd=ROOT, start_new_session=True
            )
            try:
                code = process.wait(max(1, left))
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            file.seek(0)
            print(*file.read().splitlines()[-40:], sep="\n", flush=True)
        return code

    def ask(self, program: str) -> Any:
        """Return what a Python program prints as JSON; end with its error."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise SystemExit(f"mp_cuda cannot be used here: exit code {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])


def version_here(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(wheels: Path) -> list[str]:
    """Return the names of the packages in the folder to install: this repository's, and those that are not here."""
    names = sorted({wheel.name.partition("-")[0].replace("_", "-") for wheel in wheels.glob("*.whl")})
    return [name for name in names if name.startswith("mp-") or version_here(name) is None]


def install(machine: Machine, wheels: Path, to: str) -> None:
    """Install the missing packages into the folder *to*, without an index."""
    names = missing(wheels)
    if not names:
        raise SystemExit(f"there are no wheels in {wheels}: fill it on a machine with a network by nox -s gpu-wheels")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir"]
    if machine.run(*pip, "--find-links", str(wheels), "--target", to, *names, log="install.txt"):
        raise SystemExit(
            "the wheels cannot be installed; is one for this Python missing? nox -s gpu-wheels -- --python"
        )
    machine.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [to, os.environ.get("PYTHONPATH")]))


def run_tests(machine: Machine, stub: bool) -> int:
    """Run the tests of mp-cuda on the GPU, or on the stub driver."""
    if not stub:
        machine.environment["MP_CUDA_TEST_DEVICE"] = "hardware"
    pytest = [sys.executable, "-m", "pytest", "tests/cuda", "-q", "-p", "no:cacheprovider"]
    pytest += ["-o", "faulthandler_timeout=0"]  # a dump of the stacks of running threads may crash CPython
    limit = machine.end - time.monotonic() - FOR_BENCHMARK
    code = machine.run(
        *pytest, "--timeout", "60", f"--junit-xml={machine.out / 'junit.xml'}", log="tests.txt", limit=limit
    )
    machine.environment.pop("MP_CUDA_TEST_DEVICE", None)
    return code


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "gpu-wheels")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for the results")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all")
    parser.add_argument("--installed", action="store_true", help="install nothing")
    parser.add_argument("--stub", action="store_true", help="rehearse on the stub driver, without the benchmark")
    parser.add_argument("--write", action="store_true", help="write the results into docs/cuda.md")
    asked = parser.parse_args()
    if asked.stub and asked.write:
        parser.error("docs/cuda.md shows a GPU's results, not the stub's")
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    machine = Machine(asked.limit, out)
    with tempfile.TemporaryDirectory(prefix="mp-gpu-") as folder:
        if not asked.installed:
            install(machine, asked.wheels.resolve(), folder)
        available, report = machine.ask(REPORT)
        for name, value in report:
            print(f"{name}: {value}", flush=True)
        if not available and not asked.stub:
            print("\n*** NO GPU: 0 tests were run, nothing was measured, nothing was written ***", flush=True)
            raise SystemExit(NO_GPU)
        versions = "from importlib.metadata import version, PackageNotFoundError\nimport json\nfound = {}\n"
        versions += f"for name in {LIBRARIES!r}:\n    try: found[name] = version(name)\n"
        versions += "    except PackageNotFoundError: pass\nprint(json.dumps(found))"
        results = Results(
            stub=asked.stub,
            report=[*map(tuple, report), ("Python", platform.python_version()), ("kernel", platform.release())],
            versions=machine.ask(versions),
        )
        results.tests_exit = run_tests(machine, asked.stub)
        results.outcomes = outcomes(out / "junit.xml")
        results.behaviours = behaviours(DOCUMENT.read_text(), results.outcomes)
        if not asked.stub:
            benchmark = [sys.executable, "-m", "benchmarks.cuda", "--json", str(out / "times.json")]
            seconds = max(30.0, machine.end - time.monotonic() - 20)
            machine.run(*benchmark, "--seconds", f"{seconds:.0f}", log="benchmark.txt")
            if (out / "times.json").exists():
                results.times = json.loads((out / "times.json").read_text())
    results.seconds = time.monotonic() - begun
    text = markdown(results)
    (out / "results.json").write_text(json.dumps(results.__dict__, indent=1))
    (out / "results.md").write_text(text)
    print(text)
    if asked.write:
        write_into(DOCUMENT, text)
    raise SystemExit(results.tests_exit)


if __name__ == "__main__":
    main()
