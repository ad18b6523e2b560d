"""Measurements: the demonstration, the benchmarks, the comparison of pools."""

from __future__ import annotations

import tempfile

import nox

from tools.sessions import install_all

#: nox gives a session a temporary folder in its environment, where Ray does not start.
OUTSIDE = {"TMPDIR": tempfile.gettempdir()}


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Filter a picture tile by tile, on multiprocessing and with the one import changed."""
    install_all(session, "demo")
    session.run("python", "examples/tiles/demo.py", *session.posargs)


@nox.session(name="bench-engines", default=False)
def bench_engines(session: nox.Session) -> None:
    """Measure ranks and pools on a simulated Ray cluster beside Ray: nox -s bench-engines [-- --gib SIZE]"""
    install_all(session, "ray")
    session.run("python", "-m", "benchmarks.engines", *session.posargs, env=OUTSIDE)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks: nox -s bench -- [--torch] [--peers] [--write] [--compare [--fail-above RATIO]]"""
    install_all(session, "bench")
    # Peers are large and not dependencies: the tables list uninstalled ones as missing.
    large = [group for group in ("torch", "peers") if f"--{group}" in session.posargs]
    session.run("python", "-m", "benchmarks.install", *large)
    args = [arg for arg in session.posargs if arg not in ("--torch", "--peers")]
    session.run("python", "-m", "benchmarks", *args, env=OUTSIDE)


@nox.session(default=False)
def comparison(session: nox.Session) -> None:
    """Kill workers of several libraries' pools and write what happened into docs/pool.md."""
    install_all(session, "test", "programs")
    session.run("python", "-m", "benchmarks.install", "peers")  # Ray; if it cannot be installed, the table says so
    session.run("python", "-m", "benchmarks.comparison", "--write", env=OUTSIDE)
