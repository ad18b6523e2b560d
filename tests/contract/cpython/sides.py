"""Run one side of the comparison to its end, whatever its tests do: a crash or a hang costs one test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["LIBRARIES", "Side", "run_sides"]

LIBRARIES = ("multiprocessing", "mp_all")
SIDE = Path(__file__).with_name("side.py")


class Side:
    """
    One library's run of a suite: the status of every test by its name.

    *patience* is how many seconds one test may take before it counts as hung. *options* are Python's.
    """

    def __init__(
        self,
        library: str,
        suite: str,
        method: str,
        tests: list[str] | None,
        patience: float,
        script: Path = SIDE,
        options: tuple[str, ...] = (),
    ) -> None:
        self.arguments = [*options, str(script), library, suite, method]
        self.patience = patience
        self.wanted = tests
        self.statuses: dict[str, tuple[str, str]] = {}
        self.missing: str | None = None
        self.altered = False
        self.folder = tempfile.TemporaryDirectory(prefix="mp-contract-", ignore_cleanup_errors=True)
        self.events = Path(self.folder.name, "events")
        self.output = Path(self.folder.name, "output")
        self.runs = 0
        self.begin()

    def begin(self) -> None:
        self.runs += 1
        self.events.write_text("")
        self.read = 0
        self.current: str | None = None
        self.since = time.monotonic()
        cwd = Path(self.folder.name, f"cwd{self.runs}")
        cwd.mkdir()
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *self.arguments, str(self.events), *self.rest()],
                cwd=cwd,
                env=os.environ | {"MP_CONTRACT_CACHE": self.folder.name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def rest(self) -> list[str]:
        return [test for test in self.wanted or [] if test not in self.statuses]

    def listen(self) -> None:
        with self.events.open(encoding="utf-8") as file:
            file.seek(self.read)
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        self.read += len(complete.encode())
        for line in complete.splitlines():
            self.hear(json.loads(line))
            self.since = time.monotonic()

    def hear(self, event: dict[str, Any]) -> None:
        if "begins" in event:
            self.current = event["begins"]
        elif "ended" in event:
            self.statuses[event["ended"]] = (event["status"], event["why"])
            self.current = None
        elif "missing" in event:
            self.missing = event["missing"]
        elif "altered" in event:
            self.altered = self.altered or event["altered"]
        elif self.wanted is None:
            self.wanted = event["tests"]

    def step(self) -> bool:
        """
        Read new events for a tenth of a second; return False when all tests have ended.
        """
        try:
            self.process.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
        ended = self.process.poll() is not None
        self.listen()
        if not ended:
            if time.monotonic() - self.since < self.patience:
                return True
            # SIGABRT, so that faulthandler says where every thread was.
            self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end_group(self.process.pid)
        began = self.wanted is not None or self.missing is not None
        if not ended or self.current is not None or not began:
            how = f"ended with {self.process.returncode}" if ended else f"hung for {self.patience:g} s"
            tail = self.output.read_text(errors="replace")[-6000:]
            where = "after the last test" if began else "before the first test"
            stopped = self.current or (self.rest() or [where])[0]
            self.statuses[stopped] = ("hung" if not ended else "died", f"{how}\n{tail}")
            if self.rest() and self.runs < 20:
                self.begin()
                return True
        return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        end_group(self.process.pid)
        self.folder.cleanup()


def end_group(group: int) -> None:
    """
    Wait for what a side's tests have left running to leave by itself, as its resource tracker and its shm-manager do
    once they have cleaned up; end the rest.
    """
    for how in (0, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        try:
            os.killpg(group, how)
            while how != signal.SIGKILL and time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return


def run_sides(
    suite: str,
    method: str,
    tests: list[str] | None,
    patience: float,
    limit: float,
    script: Path = SIDE,
    options: dict[str, tuple[str, ...]] | None = None,
) -> dict[str, Side]:
    """
    Run both libraries at the same time, so that both have the same load. After *limit* seconds what runs is ended.
    """
    sides = {
        library: Side(library, suite, method, tests, patience, script, (options or {}).get(library, ()))
        for library in LIBRARIES
    }
    deadline = time.monotonic() + limit
    try:
        busy = list(sides.values())
        while busy and time.monotonic() < deadline:
            busy = [side for side in busy if side.step()]
    finally:
        for side in sides.values():
            side.close()
    return sides
