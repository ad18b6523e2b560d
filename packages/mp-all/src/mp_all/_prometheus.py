"""`python -m mp_all stat --prometheus PORT`: the numbers of `memory_report()` in the format of Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from mp_all._report import report_of_others

MISSING = (
    "python -m mp_all stat --prometheus needs the package prometheus_client: "
    "pip install 'mp-all[prometheus]', or pip install prometheus_client"
)
OF_PROCESSES = {
    "held_bytes": "Bytes of shared memory that the process references; a shared block counts for each holder",
    "held_blocks": "Blocks of shared memory that the process references",
    "in_flight_bytes": "Bytes that the process sent and no process has received",
    "in_flight_blocks": "Blocks that the process sent and no process has received",
}
OF_SESSIONS = {
    "processes": "Processes that share memory",
    "cached_bytes": "Bytes that are free and cached for reuse",
    "cache_limit": "Limit of cached bytes",
    "manager_restarts": "Managers that had to be started again",
}
OF_DEVICES = {
    "own_bytes": "Bytes of device memory of the process that others have, or may still receive",
    "held_bytes": "Bytes of device memory of other processes that arrays of the process use",
}


class Collector:
    """Read the tables of all sessions at each scrape."""

    def __init__(self, gauge: Any) -> None:
        self.gauge = gauge

    def collect(self) -> Iterator[Any]:
        """Yield a gauge for each number, with the session and the pid as labels."""
        report = report_of_others()
        for name, text in OF_SESSIONS.items():
            gauge = self.gauge(f"mp_all_session_{name}", text, labels=["session"])
            for session in report["sessions"]:
                gauge.add_metric([session["id"][:8]], session[name])
            yield gauge
        gauge = self.gauge("mp_all_session_manager_up", "1 while the session has a manager", labels=["session"])
        for session in report["sessions"]:
            gauge.add_metric([session["id"][:8]], int(session["manager"] is not None))
        yield gauge
        for name, text in OF_PROCESSES.items():
            gauge = self.gauge(f"mp_all_{name}", text, labels=["session", "pid"])
            for process in report["processes"]:
                gauge.add_metric([process["session"][:8], str(process["pid"])], process[name])
            yield gauge
        for name, text in OF_DEVICES.items():
            gauge = self.gauge(f"mp_all_device_{name}", text, labels=["device", "pid"])
            for holder in report["devices"]:
                gauge.add_metric([holder["device"], str(holder["pid"])], holder[name])
            yield gauge
        text = "Seconds since the process sent the oldest message that no process has received; 0 without one"
        gauge = self.gauge("mp_all_oldest_message_seconds", text, labels=["session", "pid"])
        for process in report["processes"]:
            seconds = process["oldest"]["seconds"] if process["oldest"] else 0
            gauge.add_metric([process["session"][:8], str(process["pid"])], seconds)
        yield gauge


def serve(at: str) -> int:
    """Serve the numbers at *at*, ``PORT`` or ``HOST:PORT``, until Ctrl-C; returns the exit code."""
    host, _, port = at.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        print(f"--prometheus takes PORT or HOST:PORT, not {at!r}", file=sys.stderr)
        return 2
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import GaugeMetricFamily
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 1
    registry = CollectorRegistry()
    registry.register(Collector(GaugeMetricFamily))
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        print(f"cannot listen at {at}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"http://{host or '127.0.0.1'}:{server.server_port}/metrics", flush=True)
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()
    return 0
