"""A program in a rank is what `python program.py` would be; docs/launcher.md has a table of the differences."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "launcher.md"
LAUNCHERS = {
    "python": [sys.executable],
    "mp-spawn": [sys.executable, "-m", "mp_spawn", "-n", "2"],
    "fork": [sys.executable, "-m", "mp_spawn", "-n", "2", "--start-method", "fork"],
    "forkserver": [sys.executable, "-m", "mp_spawn", "-n", "2", "--start-method", "forkserver"],
    "nodes": [sys.executable, "-m", "mp_spawn", "-n", "2", "--engine", "local", "--nnodes", "2"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}
KINDS = {"script": ["fifty_questions.py"], "module": ["-m", "fifty_questions"]}
ENDS = {"ask": 0, "leave": 7, "raise": 1}

Answers = dict[str, object]


def environment() -> dict[str, str]:
    ours = ("MASTER_", "PET_", "OMP_", "TORCH", "RANK", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def python(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """
    Run the interpreter, without an input.
    """
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def answers(folder: Path, launcher: str, kind: str, how: str) -> tuple[int, list[Answers]]:
    """
    Run the program by a launcher; return the exit code and the answers of each rank.
    """
    folder.mkdir()
    shutil.copy(HERE / "fifty_questions.py", folder)
    (folder / "beside.py").write_text("WORD = 'found'\n")
    (folder / "out").mkdir()
    before = folder / "before.json"
    variables = environment() | {"BEFORE": str(before), "PYTHONPATH": "/of-the-user"}
    before.write_text(json.dumps(sorted(variables)))
    done = subprocess.run(
        [*LAUNCHERS[launcher], *KINDS[kind], "out", how],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == ENDS[how] or launcher == "torchrun", done.stderr
    found = []
    for rank in range(1 if launcher == "python" else 2):
        if not (folder / "out" / f"flushed-{rank}").exists():  # ended when the other one failed
            continue
        lines = [json.loads(line) for line in (folder / "out" / str(rank)).read_text().splitlines()]
        found.append({question: plain(answer, folder) for question, answer in lines})
        found[-1]["questions in order"] = [question for question, _ in lines]
        found[-1]["a global file is flushed"] = (folder / "out" / f"flushed-{rank}").read_text()
    assert found, done.stderr
    return done.returncode, found


def plain(answer: object, folder: Path) -> object:
    """Return the answer without the name of the folder."""
    return json.loads(json.dumps(answer).replace(str(folder), "HERE"))


def differences(column: str) -> set[str]:
    """
    Return the questions of the table in the page whose cell in this column is not empty.
    """
    lines = PAGE.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| question |"))
    columns = [cell.strip(" `") for cell in lines[start].strip("|").split("|")]
    found = set()
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[columns.index(column)]:
            found.add(cells[0].replace("`", ""))
    return found


def different(ours: Answers, theirs: Answers) -> set[str]:
    return {question for question in ours.keys() | theirs.keys() if ours.get(question) != theirs.get(question)}


@pytest.fixture(scope="module", params=KINDS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Answers]:
    _, [found] = answers(tmp_path_factory.mktemp("python") / "run", "python", request.param, "ask")
    assert len(found) >= 50
    return request.param, found


@pytest.mark.parametrize("launcher", ["mp-spawn", "fork", "forkserver", "nodes", "torchrun"])
def test_the_answers_to_fifty_questions_differ_as_the_table_says(
    tmp_path: Path, reference: tuple[str, Answers], launcher: str
) -> None:
    if launcher == "torchrun" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nox -s torch")
    kind, expected = reference
    _, ranks = answers(tmp_path / "run", launcher, kind, "ask")
    assert len(ranks) == 2
    table = differences("torchrun" if launcher == "torchrun" else "mp-spawn")
    for found in ranks:
        unlike = different(expected, found)
        shown = {question: (expected.get(question), found.get(question)) for question in unlike ^ table}
        assert not shown, shown


@pytest.mark.parametrize("how", ["leave", "raise"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_fails_ends_as_under_python(tmp_path: Path, kind: str, how: str) -> None:
    code, [expected] = answers(tmp_path / "python", "python", kind, how)
    for launcher in ("mp-spawn", "fork", "forkserver"):
        found_code, ranks = answers(tmp_path / launcher, launcher, kind, how)
        assert found_code == code
        assert expected in ranks


TELL = """
import atexit, json, os, sys
before = sorted(globals().keys() - {"atexit", "json", "os", "sys"})
main = sys.modules["__main__"]
told = [__name__, globals().get("__file__"), sys.argv, sys.orig_argv[1:], sys.path, getattr(__spec__, "name", None)]
told += [__package__, type(__loader__).__name__, before, vars(main) is globals()]
sys.stdout.write(json.dumps(told) + chr(10))
class C: pass
@atexit.register
def at_exit():
    import pickle
    sys.stdout.write(str(type(pickle.loads(pickle.dumps(C()))) is C) + chr(10))
"""


def told(folder: Path, launcher: list[str], program: list[str], **variables: str) -> str:
    pipe = f"exec {' '.join(launcher)} <(cat tell.py) it is" if program == ["<(...)"] else ""
    with open(folder / "tell.py" if program == ["/dev/stdin"] else os.devnull) as stdin:
        done = subprocess.run(
            ["bash", "-c", pipe] if pipe else [*launcher, *program, "it", "is"],
            cwd=folder,
            env=environment() | variables,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("safe_path", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        ["tell.py"],
        ["./sub/../tell.py"],
        ["sub/link.py"],
        ["compiled.pyc"],
        ["folder"],
        ["folder.zip"],
        ["-m", "tell"],
        ["-m", "folder"],
        ["-c", TELL],
        ["<(...)"],
        ["/dev/stdin"],
    ],
    ids=lambda words: words[0] if words[0] != "-m" else "-".join(words),
)
def test_every_kind_of_program_is_told_what_python_tells_it(
    tmp_path: Path, program: list[str], safe_path: bool
) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.py").symlink_to(tmp_path / "tell.py")
    py_compile.compile(str(tmp_path / "tell.py"), str(tmp_path / "compiled.pyc"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(TELL)
    shutil.make_archive(str(tmp_path / "folder"), "zip", tmp_path / "folder")
    variables = {"PYTHONPATH": str(tmp_path)} if program[0] == "-m" else {}
    options = ["-P"] if safe_path else []
    expected = told(tmp_path, [sys.executable, *options], program, **variables)
    command = [sys.executable, *options, "-m", "mp_spawn", "--output"]
    assert told(tmp_path, [*command, "inherit"], program, **variables) == expected
    both = told(tmp_path, [*command, "capture", "-n", "2"], program, **variables)
    assert both == expected + expected


WITHOUT = """
    import sys
    from mp_spawn.command.main import main
    from support.refused_calls import refuse

    if __name__ == "__main__":
        refuse(*sys.argv[1].split(","))
        sys.exit(main(["-n", "2", "--output", "inherit", sys.argv[2], "out", "leave"]))
"""


def test_a_rank_that_multiprocessing_starts_is_the_program_as_well(tmp_path: Path) -> None:
    _, [expected] = answers(tmp_path / "python", "python", "script", "leave")
    folder = tmp_path / "ranks"
    (folder / "out").mkdir(parents=True)
    shutil.copy(HERE / "fifty_questions.py", folder)
    environ = {"PYTHONPATH": str(HERE.parent)}
    program = textwrap.dedent(WITHOUT)
    (folder / "start.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "start.py", "socketpair,pidfd_open", "fifty_questions.py"],
        cwd=folder,
        env=environment() | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    found = [json.loads(line)[0] for path in (folder / "out").glob("[01]") for line in path.read_text().splitlines()]
    assert set(found) == set(expected["questions in order"])  # type: ignore[call-overload]


CHAIN = """
last = None
for number in range(3000):
    try:
        raise ValueError(number) from last
    except ValueError as error:
        last = error
raise last
"""
KEPT = """
import atexit, logging
class Logs(Exception):
    def __str__(self):
        logging.warning("within")
        return "the reason"
atexit.register(logging.warning, "after")
raise Logs
"""
ODD = "raise type('Odd', (Exception,), {{'{}': property(lambda _: 1 / 0)}})('text')"


@pytest.mark.parametrize(
    ("text", "code", "err"),
    [
        ("import sys; sys.exit(256)", 1, "sys.exit(256)"),
        ("import sys; del sys.excepthook; raise ValueError('no hook')", 1, "ValueError: no hook\n"),
        (ODD.format("__traceback__"), 1, "): Odd: text\n"),
        (ODD.format("__cause__"), 1, "): Odd: text\n"),
        ("import sys; sys.exit(2**70)", 255, "exit code 255"),
        ("import sys; sys.exit(-(2**63))", 1, "sys.exit(-9223372036854775808)"),
        ("import sys; sys.exit('the reason')", 1, "the reason\n"),
        ("raise KeyboardInterrupt", 130, "signal SIGINT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 13)", 175, "signal 47"),
        ("raise type('Own', (KeyboardInterrupt,), {})('the reason')", 1, "Own: the reason\n"),
        ("import sys; sys.excepthook = lambda *_: 1 / 0; raise ValueError('x')", 1, "Error in sys.excepthook:\n"),
        ("import sys; sys.stderr = sys.stdout; raise ValueError('y')", 1, "ValueError: y"),
        (CHAIN, 1, "ValueError: 0\n\nThe above exception was the direct cause"),
        (KEPT, 1, "WARNING:root:after\n"),
        ("x = = 3", 1, 'File "<string>", line 1\n    x = = 3\n'),
        ("import sys; sys.excepthook = lambda *_: sys.exit(5); raise ValueError('z')", 5, "ValueError: z"),
    ],
)
def test_ends_of_a_program_have_their_exit_code_and_reason(text: str, code: int, err: str) -> None:
    done = python("-m", "mp_spawn", "--output", "inherit", "-c", text)
    assert done.returncode == code, done.stderr
    assert err in done.stderr
    assert "program.py" not in done.stderr or "1 / 0" in text  # the hook is called from there
    assert ("ValueError: y" in done.stdout) == ("ValueError('y')" in text)


FAILURES = {
    "no descriptor is left": """
import resource
def leak():
    while True:
        held.append(open("/dev/null"))
held = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
leak()
""",
    "no memory is left": """
import resource
def fill():
    while True:
        held.append(bytearray(1000))
held = []
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
fill()
""",
    "a limit of frames": """
import sys
sys.tracebacklimit = 1
def divide():
    1 / 0
divide()
""",
    "a name that exists nearly": """
import os
os.getpi
""",
    "a chain": """
class Own(Exception):
    __cause__ = 5
try:
    {}["key"]
except KeyError:
    raise Own("and another")
""",
    "a syntax error": """
if 1:
print(1)
""",
    "a group": """
error = ValueError(1)
error.add_note("a note")
raise ExceptionGroup("several", [error, TypeError(2)])
""",
}


@pytest.mark.parametrize("text", FAILURES.values(), ids=FAILURES)
def test_the_traceback_of_a_rank_is_that_of_the_interpreter(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(text)
    said = []
    for command in ["script.py"], ["-m", "mp_spawn", "-n", "1", "script.py"]:
        done = python(*command, cwd=tmp_path)
        assert done.returncode == 1
        said.append(done.stderr)
    if "RLIMIT_AS" in text:  # how many lines of source there is memory for differs
        said = [re.sub(r"(?m)^    .*\n", "", text) for text in said]
        if sys.version_info >= (3, 13):  # it has none to import `traceback`, as it does then
            said[0] = "MemoryError\n"
    assert said[1].startswith(said[0])


def test_the_traceback_of_a_rank_imports_nothing_from_the_folder_of_its_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main():\n    raise ValueError('boom')\nmain()\n")
    for name in ("token", "tokenize", "linecache", "traceback"):
        (tmp_path / f"{name}.py").write_text("import sys\nsys.exit('another program')\n")
    done = python("-m", "mp_spawn", "-n", "1", str(tmp_path / "train.py"))
    assert done.returncode == 1
    assert "in main\n    raise ValueError('boom')\n" in done.stderr
    assert "another program" not in done.stdout + done.stderr


def two_ranks(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """
    Run a script in two ranks, in its folder.
    """
    (folder / "script.py").write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "mp_spawn", "-n", "2", *options, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60)


def test_a_keyboard_interrupt_of_one_rank_ends_the_others_before_its_threads_have_ended(tmp_path: Path) -> None:
    text = """
        import os, signal, sys, threading, time

        def wait_for(name):
            while not os.path.exists(name):
                time.sleep(0.01)

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, lambda *_: open("was ended", "w").close())
            open("waits", "w").close()
            wait_for("was ended")
        else:
            wait_for("waits")
            threading.Thread(target=wait_for, args=("was ended",)).start()
            raise KeyboardInterrupt
    """
    done = two_ranks(tmp_path, text)
    assert done.returncode == 130, done.stderr
    assert "signal SIGINT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_ends_where_an_interpreter_would_go_on_with_a_prompt() -> None:
    launcher = "import sys, mp_spawn.command.main as command, os; os._exit(command.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", launcher, "-n", "2", "--output", "inherit", "-c", "pass"],
        env={**environment(), "PYTHONINSPECT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_keyboard_interrupt_is_the_first_failure_although_its_thread_ends_last(tmp_path: Path) -> None:
    text = """
        import os, threading, time

        def wait_for(name):
            while not os.path.exists(name):
                time.sleep(0.01)

        if os.environ["RANK"] == "1":
            threading.Thread(target=wait_for, args=("has ended",)).start()
            threading.excepthook = lambda _: None
            open("raises", "w").close()
            raise KeyboardInterrupt
        wait_for("raises")
        time.sleep(0.5)
        import atexit
        atexit.register(lambda: open("has ended", "w").close())
        raise ValueError("second")
    """
    done = two_ranks(tmp_path, text, "--restart", "all")
    assert done.returncode == 130, done.stderr
    assert re.search(r"^mp-spawn: rank 1 \(pid \d+\): signal SIGINT$", done.stderr, re.M), done.stderr


@pytest.mark.parametrize("env", [[], ["--env", "OMP_NUM_THREADS=1"]], ids=["forked", "in an interpreter of its own"])
def test_a_rank_has_the_options_after_x_of_the_interpreter(env: list[str]) -> None:
    options = ["-X", "int_max_str_digits=0", "-X", "own", "-X", "utf8"]
    text = "import sys; print(sys._xoptions, len(str(10**5000)))"
    alone = subprocess.run([sys.executable, *options, "-c", text], capture_output=True, text=True, timeout=60)
    command = [sys.executable, *options, "-m", "mp_spawn", "--output", "inherit", *env, "-c", text]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, eval(done.stdout.replace("} ", "}, "))) == (0, eval(alone.stdout.replace("} ", "}, ")))


def test_the_ranks_of_a_job_have_one_hash_seed_and_one_authkey() -> None:
    text = "import multiprocessing as m; print(hash('a'), bytes(m.current_process().authkey).hex())"
    done = python("-m", "mp_spawn", "-n", "2", "--output", "capture", "-c", text)
    first, second = done.stdout.splitlines()
    assert first == second


# Of the standard library; the launcher imports them all.
SHADOWED = ["array", "datetime", "pickle", "queue", "resource", "select", "socket", "struct", "types"]


def test_a_program_finds_the_modules_of_its_folder_before_those_that_the_launcher_has_imported(tmp_path: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    # Those that the interpreter has not imported itself, and that are files.
    names = ", ".join({*SHADOWED} - {*listed.stdout.split()} - {*sys.builtin_module_names})
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("is_own = True\n")
    (tmp_path / "program.py").write_text(
        f"import errno, json, {names}\n"
        f"print(all(each.is_own for each in ({names})), hasattr(errno, 'EINTR'), json.dumps([1]))\n"
    )
    (launch := tmp_path / "bin" / "mp-spawn").parent.mkdir()  # as pip installs it
    launch.write_text("import sys\nfrom mp_spawn.command.main import main\nsys.exit(main())\n")
    command = [sys.executable, str(launch), "-n", "2"]
    for kind in (["program.py"], ["-m", "program"]):
        done = subprocess.run([*command, *kind], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == ["[rank 0] True True [1]", "[rank 1] True True [1]"]


def test_the_traceback_of_a_program_is_shown_whatever_modules_its_folder_has(tmp_path: Path) -> None:
    (tmp_path / "traceback.py").write_text("")
    (tmp_path / "program.py").write_text("import traceback\nraise ValueError('told')\n")
    done = subprocess.run(
        [sys.executable, "-m", "mp_spawn", "-n", "1", "program.py"], capture_output=True, text=True, cwd=tmp_path
    )
    assert "line 2, in <module>\n    raise ValueError('told')\nValueError: told" in done.stderr
