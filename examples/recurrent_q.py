"""Recurrent Q-learning in the manner of R2D2, on CartPole with its velocities hidden: 300 updates, a few seconds.

    python examples/recurrent_q.py [--updates 300] [--seed 0] [--forget]

A collector steps environments side by side and keeps each step's observation, action and reward, and where an episode
begins. For training these are cut into sequences. Each is stored with the LSTM's state at its first step, as it was
when the sequence was played ("stored state"). The network runs over a sequence's first steps only to renew that state
by its present weights ("burn-in"), and is trained on the rest. Episodes end and begin inside sequences: `reset=` cuts
them there. The values that the training moves to come from a target network, a copy that follows slowly.

`--forget` cuts at every step, which leaves the network no memory: then it cannot know how fast the pole falls, and the
training helps little.

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

ENVIRONMENTS = 16  # B, side by side
HIDDEN = 64  # H
BURN_IN, TRAINED = 8, 24  # time steps of a sequence
BATCH = 32  # sequences an update
DISCOUNT, LAMBDA = 0.95, 0.9
FOLLOW = 0.1  # how far the target network goes to the trained one in an update
POSITIONS = [0, 2]  # of CartPole's observation: where the cart is and the pole's angle, not how fast they change


class Network(torch.nn.Module):
    """Observations to the value of each action."""

    def __init__(self, observations: int, actions: int, forget: bool = False) -> None:
        super().__init__()
        self.forget = forget
        self.encoder = torch.nn.Sequential(torch.nn.Linear(observations, HIDDEN), torch.nn.Tanh())
        self.lstm = ln.LSTM(HIDDEN, HIDDEN)  # of a few numbers themselves LN(W x) would not tell how large they are
        self.values = torch.nn.Linear(HIDDEN, actions)

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(T, B, observations), time first, to (T, B, actions) and the state after the last step; true in ``reset``
        (T, B) where an episode begins."""
        if self.forget:
            reset = torch.ones(x.shape[:2], dtype=torch.bool)
        output, hx = self.lstm(self.encoder(x), hx, reset=reset)
        return self.values(output), hx


@dataclass
class Sequence:
    """Steps of one environment, T = BURN_IN + TRAINED + 1: the last one is there for its value.

    Attributes:
        x, action, reward: (T, 2), (T,), (T,): what was seen, then done, then got for it.
        begins: (T,) true where an episode begins; the one before ended there.
        h, c: (H,), the state before the first step.
    """

    x: Tensor
    action: Tensor
    reward: Tensor
    begins: Tensor
    h: Tensor
    c: Tensor


class Collector:
    """Plays and cuts what it has played into sequences, half of each in the next one, too."""

    def __init__(self, seed: int) -> None:
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP  # an episode's end and the next one's first observation
        make = [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS
        self.environments = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=same_step)
        seen, _ = self.environments.reset(seed=seed)
        self.x, self.begins = self.observed(seen), torch.ones(ENVIRONMENTS, dtype=torch.bool)
        self.hx = torch.zeros(1, ENVIRONMENTS, HIDDEN), torch.zeros(1, ENVIRONMENTS, HIDDEN)
        self.steps: list[tuple[Tensor, ...]] = []
        # Every environment has its own share of random actions, as in R2D2: from 0.4 down to less than 0.001.
        self.random = 0.4 ** torch.linspace(1, 8, ENVIRONMENTS)

    @staticmethod
    def observed(seen: np.ndarray) -> Tensor:
        return torch.as_tensor(seen[:, POSITIONS] * (1.0, 10.0), dtype=torch.float32)  # an angle is small

    @torch.no_grad()
    def play(self, network: Network, steps: int) -> Iterator[Sequence]:
        """So many steps in every environment; then the sequences that are whole."""
        for _ in range(steps):
            before = self.hx
            values, self.hx = network(self.x[None], before, self.begins[None])
            other = torch.randint(0, 2, (ENVIRONMENTS,))
            action = torch.where(torch.rand(ENVIRONMENTS) < self.random, other, values[0].argmax(-1))
            seen, _, fell, late, _ = self.environments.step(action.numpy())
            # The reward: -1 for falling. An episode that was stopped because it became too long counts as ended.
            self.steps.append((self.x, action, -torch.as_tensor(fell).float(), self.begins, before[0][0], before[1][0]))
            self.x, self.begins = self.observed(seen), torch.as_tensor(fell | late)
        T = BURN_IN + TRAINED + 1
        while len(self.steps) >= T:
            x, action, reward, begins = (torch.stack(part) for part in list(zip(*self.steps[:T], strict=True))[:4])
            *_, h, c = self.steps[0]
            for b in range(ENVIRONMENTS):
                yield Sequence(x[:, b], action[:, b], reward[:, b], begins[:, b], h[b], c[b])
            del self.steps[: T // 2]


def loss_of(network: Network, target: Network, batch: list[Sequence]) -> Tensor:
    """How far the values of what was done are from Q(lambda) returns, by double Q-learning: the network chooses the
    next action, the target network says what it is worth."""
    x, action, reward, begins = (
        torch.stack([getattr(item, name) for item in batch], 1) for name in ("x", "action", "reward", "begins")
    )
    hx = tuple(torch.stack([getattr(item, name) for item in batch])[None] for name in "hc")
    # A stored state is the one before the cut: `reset` forgets it where the first step begins an episode.
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
    held = torch.full((ENVIRONMENTS,), 500)  # where CartPole stops
    for t in range(1, 500):
        list(collector.play(network, 1))
        held = torch.where(collector.begins, held.clamp(max=t), held)
        if (held <= t).all():
            break
    return held.float().mean().item()


def train(updates: int, seed: int, forget: bool) -> tuple[float, float]:
    """Trains; returns how many steps the network holds the pole before and after."""
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
