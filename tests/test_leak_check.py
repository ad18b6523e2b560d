"""The leak check is itself checked: each kind of leak fails the test that leaked, and only that one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.scripts import run_python

LEAKS = {
    "descriptor": "held.append(open('/dev/zero'))",
    "duplicate": "held.append(os.dup(0))",
    "pipe": "held.append(os.pipe())",
    "connection": "held.append(mp.Pipe())",
    "memory": "held.append(mp.shared.zeros(10))",
    "cycle": "held.append(cycle(mp.shared.zeros(10)))",
    "name": "held.append(named())",
    "orphan_name": "open('/dev/shm/mpshm-' + 32 * 'e', 'x').close()",
    "thread": "threading.Thread(target=event.wait, daemon=True).start()",
    "child": "held.append(FORK.Process(target=event.wait, daemon=True)); held[-1].start()",
    "zombie": "pid = os.fork() or os._exit(0)",
    "program": "held.append(subprocess.Popen(['cat'], stdin=reader))",
    "orphan": "subprocess.run(['sh', '-c', 'exec 3<&0; cat <&3 >&2 &'], stdin=reader, stderr=-3)",
    "pool": "held.append(FORK.Pool(1))",
}
TIDY = {
    "descriptor": "open('/dev/zero').close()",
    "collected": "cycle(mp.shared.zeros(10))",
    "memory": "mp.shared.zeros(10)",
    "thread": "threading.Thread(target=threading.Event().wait, args=(0.05,)).start()",
    "child": "FORK.Process(target=os.getpid).start()",
    "queue": "queue = mp.Queue(); queue.put(mp.shared.zeros(10)); queue.get(); queue.close()",
    "spawned": "mp.get_context('spawn').Process(target=os.getpid).start()",
}
HEAD = """
import os, subprocess, threading
import mp_all as mp

FORK = mp.get_context("fork")
held = []
event = threading.Event()
# What waits for this pipe ends with this process.
reader, writer = os.pipe()

def named():
    mp.set_sharing_strategy("file_system")
    block = mp.Block(10)
    mp.set_sharing_strategy("file_descriptor")
    return block

def cycle(thing):
    box = [thing]
    box.append(box)
    return box
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    lines = [HEAD]
    for name, text in LEAKS.items():
        lines.append(f"def test_a_leak_of_a_{name}():\n    {text}\n")
        lines.append(f"def test_after_a_{name}():\n    assert True\n")
    for name, text in TIDY.items():
        lines.append(f"def test_tidy_with_a_{name}():\n    {text}\n")
    path = tmp_path / "test_leaks.py"
    path.write_text("\n".join(lines))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    yield path
    Path("/dev/shm/mpshm-" + 32 * "e").unlink(missing_ok=True)


def test_every_kind_of_leak_fails_the_test_that_leaked_and_no_other(program: Path) -> None:
    here = str(Path(__file__).parent)
    done = run_python(
        *(
            "-m",
            "pytest",
            "-p",
            "conftest",
            "-c",
            str(program.parent / "pytest.ini"),
            "-rA",
            "-q",
            str(program),
        ),
        timeout=100,
        PYTHONPATH=here,
        MP_TEST_LEAK_PATIENCE="1",
    )
    errors = set(re.findall(r"^ERROR \S+::test_(\w+)", done.stdout, re.MULTILINE))
    passed = set(re.findall(r"^PASSED \S+::test_(\w+)", done.stdout, re.MULTILINE))
    leaking = {f"a_leak_of_a_{name}" for name in LEAKS}
    tidy = {f"after_a_{name}" for name in LEAKS} | {f"tidy_with_a_{name}" for name in TIDY}
    assert errors == leaking, done.stdout
    assert passed == leaking | tidy, done.stdout
    assert done.stdout.count("left behind:") >= len(LEAKS)
