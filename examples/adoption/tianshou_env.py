"""Step two cameras with tianshou. Usual: `python tianshou_env.py`; ours: `python -m mp_all tianshou_env.py`."""

import time

import gymnasium as gym
import numpy as np
from tianshou.env import SubprocVectorEnv


class Camera(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (1080, 1920, 3), np.uint8)
    action_space = gym.spaces.Discrete(256)

    def reset(self, *, seed=None, options=None):
        return np.zeros((1080, 1920, 3), np.uint8), {}

    def step(self, action):
        return np.full((1080, 1920, 3), action, np.uint8), 0.0, False, False, {}


if __name__ == "__main__":
    env = SubprocVectorEnv([Camera, Camera], context="spawn")
    env.reset()
    begin = time.perf_counter()
    for action in range(60):
        frames, *_ = env.step(np.array([action, action + 1]))
        assert frames[1, -1, -1, -1] == action + 1
    print(f"{time.perf_counter() - begin:.3f} s")
    env.close()
