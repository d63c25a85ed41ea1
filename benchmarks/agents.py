"""Returns of sb3-contrib's RecurrentPPO under `layernorm.sb3`'s policies, in environments whose velocities are hidden.

    python benchmarks/agents.py
    python benchmarks/agents.py --environments CartPole --arms none cell sum-matched --seeds 0 1 2 3 4
    python benchmarks/agents.py --steps 4096 --seeds 0      # seconds, to see that it runs

The settings are those of rl-baselines3-zoo for the environments without velocities (hyperparams/ppo_lstm.yml, commit
22e3ff2), but for one: the rewards' scale is that of returns with a discount of 0.99, where the zoo takes the agent's.
Observations and rewards are scaled by what was seen so far; the printed returns are not. An arm is a network that is
compared: without a norm, or with a formula and a start of its gains. For each run the script prints the mean return of
the episodes that ended in its last quarter, and its seconds of CPU time; then, for each arm, the means over the seeds.

Needs sb3-contrib: pip install '.[sb3]'.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import layernorm.sb3
from layernorm import Formula


class Setting(NamedTuple):
    """An environment with the zoo's settings: the observations that are seen, the copies, the steps of a run."""

    name: str
    seen: Sequence[int]
    copies: int
    steps: int
    options: dict[str, Any]
    policy: dict[str, Any]


def falling(start: float) -> Callable[[float], float]:
    """A number that falls to 0 with the part of the training that is left."""
    return lambda left: start * left


NETWORK = {
    "ortho_init": False,
    "activation_fn": torch.nn.ReLU,
    "lstm_hidden_size": 64,
    "net_arch": {"pi": [64], "vf": [64]},
}
ENVIRONMENTS = {
    "CartPole": Setting(
        "CartPole-v1", (0, 2), 8, 100_000,
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
         "learning_rate": falling(1e-3), "clip_range": falling(0.2)}, NETWORK,
    ),
    "Pendulum": Setting(
        "Pendulum-v1", (0, 1), 4, 100_000,
        {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
         "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4}, NETWORK,
    ),
    "MountainCar": Setting(
        "MountainCarContinuous-v0", (0,), 8, 300_000,
        {"n_steps": 1024, "batch_size": 256, "gamma": 0.9999, "learning_rate": 7.77e-5, "ent_coef": 0.00429,
         "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
         "sde_sample_freq": 8}, NETWORK | {"log_std_init": 0.0, "activation_fn": torch.nn.Tanh, "lstm_hidden_size": 32},
    ),
}  # fmt: skip

ARMS: dict[str, dict[str, Any]] = {
    "none": {},
    "cell": {"norm": "layer", "formula": "cell"},
    "paper": {"norm": "layer", "formula": "paper"},
    "sum": {"norm": "layer", "formula": "sum"},
    "sum-0.3": {"norm": "layer", "formula": "sum", "gain_init": 0.3},
    "sum-eps-1": {"norm": "layer", "formula": Formula(gates="sum", cell=None, eps=1.0)},
    "sum-matched": {"norm": "layer", "formula": "sum", "gain_init": "match"},
}


class Hidden(gym.ObservationWrapper):
    """An environment of which only some observations are seen."""

    def __init__(self, env: gym.Env, seen: Sequence[int]) -> None:
        super().__init__(env)
        self.seen, space = list(seen), env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[self.seen], space.high[self.seen], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation, dtype=np.float32)[self.seen]


class Returns(BaseCallback):
    """Notes the returns of the episodes, with the step at which each ended."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.found.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def train(of: Setting, arm: dict[str, Any], seed: int, steps: int) -> tuple[float, float]:
    """Trains an agent. Returns the mean return in the last quarter of the steps, and the seconds of CPU time."""
    env = VecNormalize(make_vec_env(lambda: Hidden(gym.make(of.name), of.seen), of.copies, seed=seed))
    model = RecurrentPPO(
        layernorm.sb3.MlpLstmPolicy, env, policy_kwargs={**of.policy, **arm}, seed=seed, device="cpu", **of.options
    )
    noted, start = Returns(), time.process_time()
    model.learn(steps, callback=noted)
    late = [value for step, value in noted.found if step > 0.75 * steps]
    return (statistics.fmean(late) if late else float("nan")), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=[*ENVIRONMENTS])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["none", "cell", "sum", "sum-0.3", "sum-matched"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="of a run; default: the zoo's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.environments:
        of = ENVIRONMENTS[name]
        for arm in arguments.arms:
            found = []
            for seed in arguments.seeds:
                found.append(train(of, ARMS[arm], seed, arguments.steps or of.steps))
                print(f"{name:<12} {arm:<12} seed {seed}: {found[-1][0]:>8.1f} {found[-1][1]:>7.0f} s", flush=True)
            values, seconds = zip(*found, strict=True)
            print(
                f"{name:<12} {arm:<12} mean:   {statistics.fmean(values):>8.1f} {statistics.fmean(seconds):>7.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
