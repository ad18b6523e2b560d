"""Play a game of PettingZoo in SuperSuit's processes. Usual: `python petting_zoo.py`; ours: `python -m mp_all ...`."""

import time

import gymnasium as gym
import numpy as np
import supersuit
from pettingzoo import ParallelEnv


class Cameras(ParallelEnv):
    render_mode = "rgb_array"

    def __init__(self):
        self.metadata = {"name": "cameras"}
        self.possible_agents = self.agents = ["left", "right"]

    def observation_space(self, agent):
        return gym.spaces.Box(0, 255, (1080, 1920, 3), np.uint8)

    def action_space(self, agent):
        return gym.spaces.Discrete(256)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents
        return {agent: np.zeros((1080, 1920, 3), np.uint8) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        frames = {agent: np.full((1080, 1920, 3), actions[agent], np.uint8) for agent in self.agents}
        over = dict.fromkeys(self.agents, False)
        return frames, dict.fromkeys(self.agents, 0.0), over, over, {a: {"frame": frames[a]} for a in self.agents}


if __name__ == "__main__":
    env = supersuit.pettingzoo_env_to_vec_env_v1(Cameras())
    env = supersuit.concat_vec_envs_v1(env, 2, num_cpus=2, base_class="gymnasium")
    env.reset()
    begin = time.perf_counter()
    for action in range(30):
        frames, *_, infos = env.step(np.full(4, action))
        assert frames[3, -1, -1, -1] == action == infos[3]["frame"][-1, -1, -1]
    print(f"{time.perf_counter() - begin:.3f} s")
    env.close()
