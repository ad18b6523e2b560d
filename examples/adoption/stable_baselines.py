"""Step two cameras with stable-baselines3. Usual: `python stable_baselines.py`; ours: `python -m mp_all ...`."""

import time

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv


class Camera(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (1080, 1920, 3), np.uint8)
    action_space = gym.spaces.Discrete(256)

    def reset(self, *, seed=None, options=None):
        return np.zeros((1080, 1920, 3), np.uint8), {}

    def step(self, action):
        return np.full((1080, 1920, 3), action, np.uint8), 0.0, False, False, {}


if __name__ == "__main__":
    env = SubprocVecEnv([Camera, Camera], start_method="spawn")
    env.reset()
    begin = time.perf_counter()
    for action in range(60):
        frames, *_ = env.step(np.array([action, action + 1]))
        assert frames[1, -1, -1, -1] == action + 1
    print(f"{time.perf_counter() - begin:.3f} s")
    env.close()
