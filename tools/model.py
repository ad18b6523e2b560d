"""Check libshm's references, channels and claims on models of Arm's memory: `nox -s model`.

spin (on Debian or Ubuntu: apt-get install spin) explores every interleaving of `libshm/model/references.pml`, in which
processes send, receive, release, free and reuse one block and are killed after any store, and of
`libshm/model/channel.pml`, in which they write and read the messages of a ring and wait for each other, and of
`libshm/model/claims.pml`, in which a pool takes tasks back from a worker. A model with a seeded fault has to fail, each
in the way that is named here.

The models take for granted that each operation of the protocol acquires, releases or both. So the C files are compiled
for aarch64, and the instructions that the compiler chose are checked.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LIBSHM = Path(__file__).parents[1] / "libshm"


class Case(NamedTuple):
    """A variant of a model: its definitions, and the assertion that a seeded fault violates."""

    name: str
    defines: tuple[str, ...]
    violated: str = ""


class Model(NamedTuple):
    """A file of `libshm/model` with its variants; those with kills take minutes."""

    file: str
    cases: list[Case]
    with_kills: list[Case]
    faults: list[Case]


# FORWARD: A sends the block on. SECOND: the owner sends two messages, and one is received by value. THIRD: C receives
# the message of A, or replays the owner's. All three together have too many states.
ALONE = ("FORWARD=0", "THIRD=0")
REFERENCES = [
    Case("a message is sent on; its handle or an older one is received", ("KILLS=0", "SECOND=0")),
    Case("two messages, one received by value", ("KILLS=0", *ALONE)),
    Case("the first, and messages expire", ("KILLS=0", "SECOND=0", "EXPIRY")),
    Case("the second, and messages expire", ("KILLS=0", *ALONE, "EXPIRY")),
]
REFERENCES_WITH_KILLS = [
    Case("the first, and one process is killed anywhere", ("KILLS=1", "SECOND=0")),
    Case("the second, and one process is killed anywhere", ("KILLS=1", *ALONE)),
    Case("the second, messages expire, and one process is killed anywhere", ("KILLS=1", *ALONE, "EXPIRY")),
    Case("one message is sent on, and two processes are killed anywhere", ("KILLS=2", "SECOND=0", "THIRD=0")),
]
REFERENCE_FAULTS = [
    Case("fault: a free does not compare the version", ("KILLS=0", "SECOND=0", "NO_VERSION"), "travelling==0"),
    Case("fault: a free compares nothing", ("KILLS=0", "SECOND=0", "NO_LIVE_CHECK"), "live"),
    Case("fault: a receive clears the message first", ("KILLS=0", "SECOND=0", "CLEAR_BEFORE_HOLD"), "referencing==0"),
    Case("fault: a release is relaxed, on Arm only", ("KILLS=0", "SECOND=0", "RELAXED_RELEASE"), "bytes==expected"),
    Case("fault: a block expires under its reader", ("KILLS=0", *ALONE, "EXPIRY", "EXPIRY_OF_COUNTED"), "bytes=="),
    Case("fault: the reaper does not free", ("KILLS=1", "SECOND=0", *ALONE, "NO_REAPER_FREE"), "!(live)"),
]

# SMALL: messages of each writer, besides the large one of the first writer. By default: two writers and one reader.
CHANNEL = [
    Case("two writers and a reader of a channel", ("KILLS=0",)),
    Case("two writers and two readers", ("KILLS=0", "READERS=2")),
    Case("a writer and two readers, with more messages", ("KILLS=0", "WRITERS=1", "READERS=2", "SMALL=2")),
    Case("two writers and a reader that selects", ("KILLS=0", "SELECT=1")),
    Case("two writers and two readers that close after a message", ("KILLS=0", "CLOSE=1", "READERS=2")),
]
CHANNEL_WITH_KILLS = [
    Case("two writers and a reader, and two processes are killed anywhere", ("KILLS=2",)),
    Case("a writer and two readers, and two are killed anywhere", ("KILLS=2", "WRITERS=1", "READERS=2")),
    Case("two writers and a reader that selects, and two are killed anywhere", ("KILLS=2", "SELECT=1")),
    Case("the same with messages in one record", ("KILLS=2", "SELECT=1", "LARGE=0")),
    Case("two writers and a reader that closes, and one is killed anywhere", ("KILLS=1", "CLOSE=1")),
    Case("two writers and two readers, and one is killed anywhere", ("KILLS=1", "READERS=2")),
]
PAYLOAD, STUCK, READY = "payload[reads_at]==reads_message", "!(stuck)", "!((head==tail))"
CHANNEL_FAULTS = [
    Case("fault: a record is published before it is written", ("KILLS=0", "PUBLISH_FIRST"), "complete[m]"),
    Case("fault: publishing is relaxed, on Arm only", ("KILLS=0", "RELAXED_TAIL"), "!(taken[m])"),
    Case("fault: giving a place back is relaxed, on Arm only", ("KILLS=0", "RELAXED_HEAD"), PAYLOAD),
    Case("fault: a sleeper looks before it sets its flag", ("KILLS=0", "CHECK_BEFORE_FLAG"), STUCK),
    Case("fault: a sleeper waits for a count, not for its flag", ("KILLS=0", "SLEEP_ON_COUNT"), STUCK),
    Case("fault: a reader arms the wake-up uncompared", ("KILLS=0", "SELECT=1", "ARM_UNCOMPARED"), STUCK),
    Case("fault: a reader leaves the byte to a writer", ("KILLS=0", "SELECT=1", "SETTLE_GIVES_UP"), READY),
    Case("fault: a byte too many is not looked for", ("KILLS=1", "SELECT=1", "LARGE=0", "NO_DOUBT"), READY),
    Case("fault: the wake-up byte comes after the message", ("KILLS=1", "BYTE_LAST"), STUCK),
    Case("fault: the wake-up of the dead is not repaired", ("KILLS=1", "NO_BYTE_REPAIR"), STUCK),
    Case("fault: a writer does not see that the reader closed", ("KILLS=0", "CLOSE=1", "CLOSES_UNSEEN"), "complete"),
    Case("fault: an interrupted repair takes a second place", ("KILLS=2", "WRITERS=3", "ABORTED_TWICE"), "tail-head"),
]

CLAIMS = [Case("a pool and a worker that is stopped anywhere", ("KILLS=0",))]
CLAIMS_WITH_KILLS = [Case("a pool and a worker that is stopped and killed anywhere", ("KILLS=1",))]
CLAIM_FAULTS = [
    Case("fault: the worker claims without a comparison", ("KILLS=0", "CLAIM_UNCOMPARED"), "begun["),
    Case("fault: the pool takes back without a comparison", ("KILLS=0", "TAKE_UNCOMPARED"), "begun["),
    Case("fault: the pool takes back what was not received", ("KILLS=0", "TAKE_RECEIVED"), "begun["),
    Case("fault: a result comes after the next claim", ("KILLS=1", "LATE_RESULT"), "lost<=1"),
    Case("fault: the last results are read before the death", ("KILLS=1", "DRAIN_FIRST"), "result[i]"),
]

MODELS = [
    Model("references.pml", REFERENCES, REFERENCES_WITH_KILLS, REFERENCE_FAULTS),
    Model("channel.pml", CHANNEL, CHANNEL_WITH_KILLS, CHANNEL_FAULTS),
    Model("claims.pml", CLAIMS, CLAIMS_WITH_KILLS, CLAIM_FAULTS),
]

# The memory that a search may use, in MB.
MEMORY = 8000


def explore(model: Path, case: Case, folder: Path) -> str:
    """Explore every state of *case*; return the number of states, or end the program."""
    defines = [f"-D{name}" for name in case.defines]
    subprocess.run(["spin", *defines, "-a", str(model)], cwd=folder, check=True)
    subprocess.run(
        ["gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c"], cwd=folder, check=True
    )
    done = subprocess.run(["./pan", "-m100000", "-w24"], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    found = re.search(r"assertion violated (.*) \(at depth (\d+)\)", done.stdout)
    states = re.search(r"(\d+) states, stored", done.stdout)
    if re.search(r"out of memory|max search depth too small", done.stdout) or states is None:
        raise SystemExit(f"{case.name}: the search was not completed\n{done.stdout}")
    if case.violated:
        if found is None or case.violated not in found[1].replace(" ", ""):
            raise SystemExit(f"{case.name}: not found\n{done.stdout}")
        return f"found after {states[1]} states: {found[1].strip()} is violated in step {found[2]}"
    if "errors: 0" not in done.stdout:
        steps = subprocess.run(
            ["spin", *defines, "-t", "-p", str(model)], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        raise SystemExit(f"{case.name}: the model fails\n{done.stdout}\n{steps.stdout[-4000:]}")
    return f"{states[1]} states, no error"


# ---- the compiler's output -------------------------------------------------------------------------------------------

# The relaxed operations of each file. References: two loads of the reaper, which the kernel's locks order; two that
# choose the blocks that expire, of which the free reads everything again; and three stores before a block is live.
# Channels: counts and flags that only the holder of a lock changes, read by that holder; the room as a reader sees
# it (one); the processor of the last writer, a hint (three); the ceiling of spins (two); `selectable`, which is never
# cleared; `closes`, which only makes the writer ask the kernel sooner.
RELAXED = {
    "reference/reference.c": 4,
    "reference/message.c": 0,
    "segment/holder_bits.c": 3,
    "channel/ring.c": 8,
    "channel/waiting.c": 0,
    "channel/wakeup.c": 4,
    "channel/send.c": 2,
    "channel/receive.c": 0,
    "channel/claims.c": 0,
    "channel/wait_any.c": 0,
}
# Exclusive and atomic instructions of aarch64: those that order nothing, or in one direction only.
WEAK = re.compile(r"\b(ldxrb?|stxrb?|ldapur?b?|ldaprb?|(?:ldadd|ldset|ldclr|swp|cas)(?:a|l)?b?)\s")
ORDERED = re.compile(r"\b(ldarb?|stlrb?|ldaxrb?|stlxrb?|(?:ldadd|ldset|ldclr|swp|cas)alb?|__aarch64_\w+_acq_rel)\b")


def weak_instructions(assembly: str) -> list[str]:
    """
    Return the instructions for shared memory that Arm may reorder.

    >>> weak_instructions("ldaxr x8, [x0]\\nstlxr w9, x8, [x0]\\nldaddal x1, x2, [x3]\\nldar x1, [x2]")
    []
    >>> weak_instructions("ldxr x8, [x0]\\nstlxr w9, x8, [x0]\\nldadda x1, x2, [x3]")
    ['ldxr', 'ldadda']
    """
    return [found[1] for found in WEAK.finditer(assembly)]


def check_instructions(folder: Path) -> None:
    for name, known in RELAXED.items():
        source = LIBSHM / "src" / name
        relaxed = source.read_text().count("memory_order_relaxed")
        if relaxed != known:
            raise SystemExit(f"{name} has {relaxed} relaxed operations, and the model knows of {known}")
        for options in ([], ["-mcpu=neoverse_n1"]):  # with exclusive loads and stores, and with atomic instructions
            output = folder / "aarch64.s"
            compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28", *options]
            flags = ["-std=gnu11", "-O2", "-fPIC", f"-I{LIBSHM / 'include'}", f"-I{LIBSHM / 'src'}"]
            subprocess.run([*compiler, *flags, "-S", "-o", str(output), str(source)], check=True)
            text = output.read_text()
            weak, ordered = weak_instructions(text), len(ORDERED.findall(text))
            if weak:
                raise SystemExit(
                    f"{name} for aarch64 {options}: {weak} can be reordered, which the model does not know"
                )
            print(f"ok  {name}, aarch64 {' '.join(options) or 'v8.0'}: {ordered} ordered instructions, no weaker one")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s model --")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="references, channel or claims; default: all")
    parser.add_argument("--short", action="store_true", help="no kills but for the faults that need them")
    asked = parser.parse_args()
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing (on Debian or Ubuntu: apt-get install {program})")
    with tempfile.TemporaryDirectory(prefix="mp-model-") as name:
        folder = Path(name)
        check_instructions(folder)
        for model in MODELS:
            path = LIBSHM / "model" / model.file
            if asked.models and path.stem not in asked.models:
                continue
            for case in [*model.cases, *([] if asked.short else model.with_kills), *model.faults]:
                begun = time.monotonic()
                found = explore(path, case, folder)
                print(f"ok  {case.name}: {found} ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
