"""Train on two ranks that average their gradients, by a launch line of torchrun; a failure starts both again."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, LAST = 200, 100


def train(checkpoint: Path) -> None:
    dist.init_process_group("gloo")  # finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment
    rank, nprocs = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(1000, 3, dtype=torch.float64)
    targets = inputs @ torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    mine = slice(rank, None, nprocs)
    step, weights = torch.load(checkpoint) if checkpoint.exists() else (0, torch.zeros(3, dtype=torch.float64))
    while step < STEPS:
        gradient = inputs[mine].T @ (inputs[mine] @ weights - targets[mine]) / 1000
        dist.all_reduce(gradient)  # waits for the other rank: if that fails, both must start again
        weights -= 0.1 * gradient
        step += 1
        if step == LAST:
            if rank == 0:
                torch.save((step, weights), checkpoint)
            dist.barrier()
            if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os._exit(1)
    assert torch.allclose(weights, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), atol=1e-6)
    if rank == 0:
        print(
            "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "has learnt", [round(w, 3) for w in weights.tolist()]
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:  # the same as the launch line: mp-spawn --standalone --nproc-per-node 2 --max-restarts 1 15_torchrun.py FILE
        from mp_spawn.command.main import main

        with tempfile.TemporaryDirectory() as folder:
            line = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
            assert main([*line, __file__, f"{folder}/checkpoint"]) == 0
