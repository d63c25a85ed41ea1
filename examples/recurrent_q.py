"""Recurrent Q-learning in the manner of R2D2, on CartPole with its velocities hidden: 300 updates, a few seconds.

    python examples/recurrent_q.py [--updates 300] [--seed 0] [--forget]

A collector steps several environments in parallel. It stores each step's observation, action and reward, and whether
the step begins an episode. The steps are cut into sequences for training. A sequence is stored with the LSTM's state
before its first step, as it was when the sequence was played ("stored state"). The network first runs over a few steps
of the sequence without training, so that the state fits its present weights ("burn-in"). It is trained on the other
steps. Episodes end and begin inside sequences, and `reset=` sets the state to zero there. The target values come from
a target network, whose weights follow the trained ones slowly.

`--forget` resets the state at every step, so that the network has no memory. It then cannot know how fast the pole
falls, and training helps little.

Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.

Needs gymnasium.
"""

from __future__ import annotations

import argparse
import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor

import layernorm as ln

ENVIRONMENTS = 16  # B, stepped in parallel
HIDDEN = 64  # H
BURN_IN, TRAINED = 8, 24  # time steps of a sequence
BATCH = 32  # sequences per update
DISCOUNT, LAMBDA = 0.95, 0.9
FOLLOW = 0.1  # the share of the difference by which an update moves the target network to the trained one
POSITIONS = [0, 2]  # the cart's position and the pole's angle in CartPole's observation, without their velocities


class Network(torch.nn.Module):
    """Computes the value of each action from the observations so far."""

    def __init__(self, observations: int, actions: int, forget: bool = False) -> None:
        super().__init__()
        self.forget = forget
        self.encoder = torch.nn.Sequential(torch.nn.Linear(observations, HIDDEN), torch.nn.Tanh())
        # The encoder is needed: LN(W x) of the two observed numbers themselves would hide how large they are.
        self.lstm = ln.LSTM(HIDDEN, HIDDEN)
        self.values = torch.nn.Linear(HIDDEN, actions)

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the values (T, B, actions) and the state after the last step.

        Args:
            x: observations (T, B, observations), time first.
            hx: the state before the first step.
            reset: (T, B), true where an episode begins.
        """
        if self.forget:
            reset = torch.ones(x.shape[:2], dtype=torch.bool)
        output, hx = self.lstm(self.encoder(x), hx, reset=reset)
        return self.values(output), hx


@dataclass
class Sequence:
    """T = BURN_IN + TRAINED + 1 steps of one environment. The last step is only needed for its value.

    Attributes:
        x, action, reward: the observation (T, 2), the action chosen after it (T,), and the reward for the action (T,).
        begins: (T,), true where an episode begins. The episode before it has ended there.
        h, c: (H,), the state before the first step.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    begins: Tensor
    h: Tensor
    c: Tensor


class Collector:
    """Plays episodes and cuts the steps into sequences, each of which overlaps the next one by half."""

    def __init__(self, seed: int) -> None:
        # The step that ends an episode already returns the first observation of the next one.
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP
        make = [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS
        self.environments = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=same_step)
        observation, _ = self.environments.reset(seed=seed)
        self.x, self.begins = self.visible(observation), torch.ones(ENVIRONMENTS, dtype=torch.bool)
        self.hx = torch.zeros(1, ENVIRONMENTS, HIDDEN), torch.zeros(1, ENVIRONMENTS, HIDDEN)
        self.steps: list[tuple[Tensor, ...]] = []
        # Every environment has its own share of random actions, as in R2D2: from 0.4 down to less than 0.001.
        self.random = 0.4 ** torch.linspace(1, 8, ENVIRONMENTS)

    @staticmethod
    def visible(observation: np.ndarray) -> Tensor:
        """The part of the observation that the network sees. The angle, which is small, is multiplied by 10."""
        return torch.as_tensor(observation[:, POSITIONS] * (1.0, 10.0), dtype=torch.float32)

    @torch.no_grad()
    def play(self, network: Network, steps: int) -> Iterator[Sequence]:
        """Plays ``steps`` steps in every environment, then yields the sequences that are complete."""
        for _ in range(steps):
            before = self.hx
            values, self.hx = network(self.x[None], before, self.begins[None])
            other = torch.randint(0, 2, (ENVIRONMENTS,))
            action = torch.where(torch.rand(ENVIRONMENTS) < self.random, other, values[0].argmax(-1))
            observation, _, fell, truncated, _ = self.environments.step(action.numpy())
            # The reward is -1 for falling. An episode that was truncated at its longest length counts as ended.
            self.steps.append((self.x, action, -torch.as_tensor(fell).float(), self.begins, before[0][0], before[1][0]))
            self.x, self.begins = self.visible(observation), torch.as_tensor(fell | truncated)
        T = BURN_IN + TRAINED + 1
        while len(self.steps) >= T:
            x, action, reward, begins = (torch.stack(part) for part in list(zip(*self.steps[:T], strict=True))[:4])
            *_, h, c = self.steps[0]
            for b in range(ENVIRONMENTS):
                yield Sequence(x[:, b], action[:, b], reward[:, b], begins[:, b], h[b], c[b])
            del self.steps[: T // 2]


def loss_of(network: Network, target: Network, batch: list[Sequence]) -> Tensor:
    """The mean squared error of the chosen actions' values against Q(lambda) returns.

    The returns are those of double Q-learning: the network chooses the next action, and the target network gives the
    value of this action.
    """
    x, action, reward, begins = (
        torch.stack([getattr(item, name) for item in batch], 1) for name in ("x", "action", "reward", "begins")
    )
    hx = tuple(torch.stack([getattr(item, name) for item in batch])[None] for name in "hc")
    # Where the first step begins an episode, the stored state belongs to the episode before, and `reset` drops it.
    with torch.no_grad():
        _, warm = network(x[:BURN_IN], hx, begins[:BURN_IN])
        later, _ = target(x, hx, begins)
    values, _ = network(x[BURN_IN:], warm, begins[BURN_IN:])
    chosen = values.gather(-1, action[BURN_IN:, :, None]).squeeze(-1)[:-1]
    with torch.no_grad():
        after = later[BURN_IN + 1 :].gather(-1, values[1:].argmax(-1, keepdim=True)).squeeze(-1)
        goals, goal = [], after[-1]
        for t in reversed(range(TRAINED)):
            goal = (1 - LAMBDA) * after[t] + LAMBDA * goal
            goal = reward[BURN_IN + t] + DISCOUNT * goal.where(~begins[BURN_IN + t + 1], 0.0)
            goals.append(goal)
    return torch.nn.functional.mse_loss(chosen, torch.stack(goals[::-1]))


@torch.no_grad()
def steps_held(network: Network, seed: int) -> float:
    """The mean number of steps in an episode in which the network chooses every action."""
    collector = Collector(seed)
    collector.random.zero_()
    held = torch.full((ENVIRONMENTS,), 500)  # CartPole's longest episode
    for t in range(1, 500):
        list(collector.play(network, 1))
        held = torch.where(collector.begins, held.clamp(max=t), held)
        if (held <= t).all():
            break
    return held.float().mean().item()


def train(updates: int, seed: int, forget: bool) -> tuple[float, float]:
    """Trains a network; returns for how many steps it holds the pole before and after training."""
    torch.manual_seed(seed)
    network = Network(len(POSITIONS), 2, forget)
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters(), 6e-3)
    first = steps_held(network, seed + 1)
    collector, memory = Collector(seed), deque[Sequence](maxlen=1000)
    memory += collector.play(network, 3 * (BURN_IN + TRAINED))
    for update in range(1, updates + 1):
        memory += collector.play(network, 4)
        batch = [memory[i] for i in torch.randint(len(memory), (BATCH,)).tolist()]
        loss = loss_of(network, target, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                slow.lerp_(fast, FOLLOW)
        if update % 50 == 0:
            print(f"update {update}: loss {loss.item():.4f}")
    return first, steps_held(network, seed + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forget", action="store_true")
    arguments = parser.parse_args()
    first, last = train(arguments.updates, arguments.seed, arguments.forget)
    print(f"before training the pole is held for {first:.0f} steps, after it for {last:.0f}")


if __name__ == "__main__":
    main()
