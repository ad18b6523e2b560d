"""torchrun and mp-spawn start the same ranks by the same line, and torch.distributed works in those of mp-spawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.ports import free_port

pytest.importorskip("torch.distributed.run", reason="torch is not installed: nox -s torch")
pytestmark = pytest.mark.timeout(400)  # each rank imports torch

TELL = """
    import json, os, sys

    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    names += "ROLE_NAME TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS OMP_NUM_THREADS"
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
        json.dump({name: os.environ.get(name) for name in names.split()} | {"more": sys.argv[2:]}, file)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "fail" in sys.argv and os.environ["RANK"] == "1":
        sys.exit(3)
"""
ALL_REDUCE = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(total)
    print(dist.get_rank(), dist.get_world_size(), total.unique().tolist(), dist.is_torchelastic_launched(), flush=True)
    dist.destroy_process_group()
"""


def start(module: str, *line: str) -> subprocess.Popen[str]:
    read = ("MASTER_", "PET_", "OMP_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(read)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *line],
        env=kept | {"MP_SPAWN_KEY": "a secret for the tests", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*started: subprocess.Popen[str]) -> str:
    """Wait for commands that succeed, and return what they have printed."""
    printed = ""
    try:
        for process in started:
            out, err = process.communicate(timeout=180)
            assert process.returncode == 0, err
            printed += out
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return printed


@pytest.mark.parametrize(
    "line",
    [
        ["--standalone", "--nproc-per-node=2"],
        [
            "--nproc_per_node",
            "2",
            "--master_addr",
            "localhost",
            "--master_port",
            "PORT",
            "--role",
            "r",
            "TELL",
            "--x_y",
        ],
        ["--nnodes=1:1", "--nproc-per-node", "2", "--rdzv-id=7", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
        ["--nproc-per-node", "2", "--max-restarts", "2", "--master-port", "PORT", "TELL", "fail"],
    ],
    ids=["standalone", "static", "c10d", "restarts"],
)
def test_ranks_are_told_the_same(tmp_path: Path, line: list[str]) -> None:
    script = tmp_path / "tell.py"
    script.write_text(textwrap.dedent(TELL))
    told = []
    for module in ("torch.distributed.run", "mp_spawn"):
        folder = tmp_path / module
        folder.mkdir()
        whole = " ".join(line if "TELL" in line else [*line, "TELL"]).replace("PORT", str(free_port()))
        finish(start(module, *whole.replace("TELL", f"{script} {folder}").split()))
        ranks = [json.loads((folder / rank).read_text()) for rank in ("0", "1")]
        if "--standalone" in line:  # a new name for each job
            assert {len(rank.pop("TORCHELASTIC_RUN_ID")) for rank in ranks} == {36}
        told.append(ranks)
    assert told[0] == told[1]


@pytest.mark.parametrize("line", ["--standalone --nproc-per-node 2", "-n 2", "--nproc-per-node=2 --start-method=fork"])
def test_an_all_reduce_on_one_machine(tmp_path: Path, line: str) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(textwrap.dedent(ALL_REDUCE))
    printed = finish(start("mp_spawn", *line.split(), str(script)))
    assert sorted(printed.splitlines()) == [f"[rank {rank}] {rank} 2 [3.0] True" for rank in range(2)]


@pytest.mark.parametrize(
    "line",
    [
        "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id 7 --rdzv-endpoint 127.0.0.1:PORT",
        "--nnodes=2 --nproc_per_node=1 --master_addr=127.0.0.1 --master_port=PORT --node_rank=NODE",
    ],
    ids=["c10d", "static"],
)
def test_an_all_reduce_over_two_nodes(tmp_path: Path, line: str) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(textwrap.dedent(ALL_REDUCE))
    line = line.replace("PORT", str(free_port()))
    printed = finish(*(start("mp_spawn", *line.replace("NODE", str(node)).split(), str(script)) for node in range(2)))
    assert sorted(text.split("] ", 1)[1] for text in printed.splitlines()) == [f"{k} 2 [3.0] True" for k in range(2)]
