"""A program that selects is told of messages and of nothing else, wherever a writer is stopped."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Stops the process in the unlock of a robust mutex, when the program has asked for it.
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

int stop_in_unlock;

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*unlock)(pthread_mutex_t *);
    enum { ROBUST = 16 }; /* in the kind of a mutex, in glibc */

    if (unlock == NULL)
        *(void **)&unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    if (stop_in_unlock && (mutex->__data.__kind & ROBUST)) {
        stop_in_unlock = 0;
        raise(SIGSTOP);
    }
    return unlock(mutex);
}
"""

PROGRAM = """
import ctypes, os, signal, sys
from multiprocessing.connection import wait
import mp_all as mp

reader, writer = mp.Pipe(sys.argv[1] == "duplex")
assert wait([reader], 0) == []
pid = os.fork()
if pid == 0:
    ctypes.c_int.in_dll(ctypes.CDLL(None), "stop_in_unlock").value = 1
    writer.send("whole")
    os._exit(0)
_, status = os.waitpid(pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status
assert wait([reader], 0) == [reader]
assert reader.recv() == "whole"
print(len(wait([reader], 0)), flush=True)
os.kill(pid, signal.SIGCONT)
os.waitpid(pid, 0)
print(len(wait([reader], 0)))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's mutexes are known to the test")
@pytest.mark.parametrize("form", ["duplex", "one way"])
@pytest.mark.timeout(60)
def test_a_writer_that_is_stopped_before_it_unlocks_leaves_no_descriptor_readable(tmp_path: Path, form: str) -> None:
    source, library = tmp_path / "stop.c", tmp_path / "stop.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == (["0", "0"], 0), done.stderr
