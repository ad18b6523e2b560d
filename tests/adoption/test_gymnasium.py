"""gymnasium's vector environments, unchanged: they name a start method and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("gymnasium", reason="gymnasium is not installed: nox -s adoption")

PROGRAM = """
import sys

import gymnasium
import numpy as np


class Camera(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (400, 400, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(256)

    def reset(self, *, seed=None, options=None):
        return np.zeros((400, 400, 3), np.uint8), {}

    def step(self, action):
        frame = np.full((400, 400, 3), action, np.uint8)
        return frame, float(action), False, False, {"depth": frame[..., 0].astype(float)}


if __name__ == "__main__":
    shared = sys.argv[2] == "shared"
    env = gymnasium.vector.AsyncVectorEnv([Camera, Camera], context=sys.argv[1], shared_memory=shared)
    env.reset()
    for action in range(5):
        frames, rewards, _, _, infos = env.step(np.array([action, 2 * action]))
        assert (frames[0] == action).all() and (frames[1] == 2 * action).all()
        assert (infos["depth"][1] == 2 * action).all()
    raw = env.parent_pipes[0]
    raw.send(("step", 7))
    result, success = raw.recv()
    env.close()
    import multiprocessing

    ours = sys.modules.get("mp_all")
    print(success, multiprocessing.Pool.__module__, ours is not None and ours.is_shared(result[-1]["depth"]))
"""


@pytest.mark.parametrize("memory", ["shared", "piped"])
def test_an_async_vector_env_runs_and_its_arrays_come_through_shared_memory(
    tmp_path: Path, start_method: str, memory: str
) -> None:
    program = tmp_path / "camera.py"
    program.write_text(PROGRAM)
    usual = run_python(str(program), start_method, memory)
    assert succeeded(usual) == "True multiprocessing.context False\n"
    assert succeeded(run_python("-m", "mp_all", str(program), start_method, memory)) == "True mp_pool.contexts True\n"
