"""No wait depends on the clock of the machine: a program may believe that it is an hour earlier or later than it is."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing")

#: The kernel waits by its own clock. So a deadline on this one comes an hour late or at once, as if the clock was set
#: after the program had read it.
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) { const char *text = getenv("CLOCK_OFFSET"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(clock, t);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += offset();
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(params=[-3600, 3600], ids=["an hour back", "an hour on"])
def clock(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """
    The environment of a program whose clock is set.
    """
    library, source = tmp_path / "clock.so", tmp_path / "clock.c"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(request.param)}


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.timeout(90)
def test_timeouts_of_queues_are_kept(tmp_path: Path, clock: dict[str, str], start_method: str, kind: str) -> None:
    program = f"""
        import os, queue, signal, time
        import mp_all as mp

        def wait(queue, answer):
            began = time.monotonic()
            try:
                answer.send(queue.get(timeout=0.3))
            except Exception as error:
                answer.send(type(error).__name__)
            answer.send(time.monotonic() - began)

        if __name__ == "__main__":
            ctx = mp.get_context({start_method!r})
            full, empty = ctx.{kind}(2), ctx.{kind}()
            answers, answer = ctx.Pipe(False)
            full.put(1)
            full.put(2)
            began = time.monotonic()
            for wait_for in full.put, full.put, lambda *_, timeout: empty.get(timeout=timeout):
                try:
                    wait_for(3, timeout=0.3)
                except (queue.Full, queue.Empty):
                    print(end="late ")
            child = ctx.Process(target=wait, args=(empty, answer))
            child.start()
            print(answers.recv(), 0.29 < answers.recv() < 20, 0.89 < time.monotonic() - began < 60)
            child.join()
            full.close(), empty.close()
    """
    said = succeeded(run_script(tmp_path, program, timeout=60, **clock))
    assert said == "late late late Empty True True\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc waits for a lock by another clock")
@pytest.mark.timeout(90)
def test_who_waits_for_the_lock_of_a_stopped_process_is_woken_in_time(tmp_path: Path, clock: dict[str, str]) -> None:
    program = """
        import os, signal, threading, time
        import mp_all as mp

        def stream(writer):
            while True:
                writer.send([0] * 300_000)  # in parts: it has the writers' lock while it waits for room

        if __name__ == "__main__":
            ctx = mp.get_context("fork")
            reader, writer = ctx.Pipe(False)
            child = ctx.Process(target=stream, args=(writer,), daemon=True)
            child.start()
            reader.poll(None)
            os.kill(child.pid, signal.SIGSTOP)
            class Alarm(Exception):
                pass
            def alarm(*_):
                raise Alarm
            signal.signal(signal.SIGALRM, alarm)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            began = time.monotonic()
            try:
                writer.send(1)
            except Alarm:
                print("alarm", time.monotonic() - began < 20)
            sender = threading.Thread(target=writer.send, args=(2,))
            sender.start()
            time.sleep(0.3)
            os.kill(child.pid, signal.SIGKILL)
            sender.join(20)
            print("sent", not sender.is_alive())
            while reader.recv() != 2:
                pass
    """
    assert succeeded(run_script(tmp_path, program, timeout=60, **clock)) == "alarm True\nsent True\n"
