"""Recurrent Q-learning in the manner of R2D2: a pole is balanced on a cart, and only positions are seen."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ....train.batches import NOISE, derive_seed
from ..cartpole import Poles, load_cartpole, steps_held
from ..program import Data, Networks, Parts, Program

POLES, STEPS, BATCH, UNITS = 16, 15, 32, 128
DISCOUNT, BOOTSTRAP, EPSILON = 0.997, 5, 1e-3
FIRST, ROUNDS, UPDATES, FOLLOW = 20, 200, 5, 100
"""FIRST: rounds played before the first update. ROUNDS: rounds in memory. UPDATES: updates after each round. FOLLOW:
updates between copies into the target."""


class Network(nn.Module):
    """Values of both actions, from what is seen, the last action, and whether there was one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, UNITS), nn.ReLU())
        self.lstm = networks(UNITS + 3, UNITS)
        self.advantage, self.value = (
            nn.Sequential(nn.Linear(UNITS, 64), nn.ReLU(), nn.Linear(64, size)) for size in (2, 1)
        )

    def forward(self, seen: Tensor, last: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Returns values `[T, B, 2]` and the state, for what is seen `[T, B, 2]`, last actions and beginnings."""
        rewarded = (~begins).float().unsqueeze(2)
        x = torch.cat([self.body(seen), rewarded * F.one_hot(last, 2), rewarded], 2)
        output, state = self.lstm(x, state, reset=begins)
        advantage = self.advantage(output)
        return self.value(output) + advantage - advantage.mean(2, keepdim=True), state


class Learner(nn.Module):
    """The network, its target, and the rounds that were played, in buffers."""

    def __init__(self, networks: Networks, seed: int) -> None:
        super().__init__()
        self.network = Network(networks)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.poles = Poles(POLES, derive_seed(seed, NOISE))
        whole = (ROUNDS, STEPS + 1, POLES)
        self.register_buffer("seen", torch.zeros(*whole, 2))
        self.register_buffer("last", torch.zeros(whole, dtype=torch.int64))  # and the action of the step before
        self.register_buffer("begins", torch.ones(whole, dtype=torch.bool))
        self.register_buffer("states", torch.zeros(2, ROUNDS, POLES, UNITS))
        self.register_buffer("state", torch.zeros(2, 1, POLES, UNITS))
        self.register_buffer("share", 0.4 ** torch.linspace(1, 8, POLES))  # of random actions, for each pole


@torch.no_grad()
def play(learner: Any, number: int, seed: int) -> None:
    """Plays a round, which takes the place of the oldest one. Its last step is the next one's first."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(2, STEPS, POLES, generator=generator).to(learner.seen.device)
    place, before = number % ROUNDS, (number - 1) % ROUNDS
    seen, last, begins = learner.seen[place], learner.last[place], learner.begins[place]
    learner.poles.resume(seed)
    learner.states[:, place] = learner.state[:, 0]
    state = tuple(learner.state)
    seen[0], last[0], begins[0] = learner.poles.seen(), learner.last[before, -1], learner.begins[before, -1]
    for step in range(STEPS):
        values, state = learner.network(seen[step : step + 1], last[step : step + 1], begins[step : step + 1], state)
        any_action = (draws[1, step] < 0.5).long()
        last[step + 1] = torch.where(draws[0, step] < learner.share, any_action, values[0].argmax(1))
        begins[step + 1] = learner.poles.step(last[step + 1])
        seen[step + 1] = learner.poles.seen()
    learner.state.copy_(torch.stack(state))
    learner.poles.keep()


def squashed(value: Tensor) -> Tensor:
    """Computes R2D2's h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + EPSILON * value


def unsquashed(value: Tensor) -> Tensor:
    """Inverts `squashed`."""
    root = (1 + 4 * EPSILON * (value.abs() + 1 + EPSILON)).sqrt()
    return value.sign() * (((root - 1) / (2 * EPSILON)).square() - 1)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    learner = Learner(networks, seed)

    def loss(learner: Any, update: int) -> Tensor:
        if update % FOLLOW == 0:
            learner.target.load_state_dict(learner.network.state_dict())
        played, left = divmod(update, UPDATES)
        if left == 0:
            for number in range(0 if played == 0 else FIRST + played - 1, FIRST + played):
                play(learner, number, derive_seed(seed, NOISE, number))
        generator = torch.Generator().manual_seed(derive_seed(seed, NOISE, update, 1))
        rounds = torch.randint(min(ROUNDS, FIRST + played), (BATCH,), generator=generator)
        poles = torch.randint(POLES, (BATCH,), generator=generator)
        seen, last, begins = (part[rounds, :, poles].transpose(0, 1)
                              for part in (learner.seen, learner.last, learner.begins))  # fmt: skip
        state = tuple(learner.states[:, rounds, poles].unsqueeze(1))
        values = learner.network(seen, last, begins, state)[0]
        with torch.no_grad():
            later = learner.target(seen, last, begins, state)[0].gather(2, values.argmax(2, keepdim=True))
            later = unsquashed(later.squeeze(2))
            goals = later
            for _ in range(BOOTSTRAP):
                goals = torch.cat([1 + DISCOUNT * ~begins[1:] * goals[1:], later[-1:]])
        chosen = values[:-1].gather(2, last[1:].unsqueeze(2)).squeeze(2)
        return 0.5 * (chosen - squashed(goals[:-1])).square().sum(0).mean()

    def evaluate(learner: Any) -> float:
        def choose(seen: Tensor, begins: Tensor, state: Any) -> tuple[Tensor, Any]:
            last, state = state or (torch.zeros_like(begins[0], dtype=torch.int64), None)
            values, state = learner.network(seen, last.unsqueeze(0), begins, state)
            actions = values[0].argmax(1)
            return actions, (actions, state)

        return steps_held(choose, learner.seen.device)

    generator = torch.Generator().manual_seed(seed)
    seen = 0.1 * torch.randn(STEPS, POLES, 2, generator=generator)
    last = torch.randint(2, (STEPS, POLES), generator=generator)
    example = (seen, last, torch.zeros(STEPS, POLES, dtype=torch.bool))
    return Parts(learner, loss, evaluate, example, learner.network)


PROGRAM = Program(
    source="https://github.com/michaelnny/deep_rl_zoo (r2d2/run_classic.py)",
    settings="Adam 5e-4 with eps 1e-3, 16 actors, unrolls of 15 steps without burn-in, batch 32, 5-step double "
    "Q-learning, discount 0.997, a target copied every 100 updates, gradient's norm clipped to 10. Here 128 units for "
    "259, the memory without priorities, the velocities hidden.",
    network="LSTM",
    metric=Metric("steps", "steps held", rising=True),
    chance=9.0,
    margin=20.0,
    optimizer=functools.partial(torch.optim.Adam, eps=1e-3),
    rate=5e-4,
    updates=1500,
    load=load_cartpole,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 10.0),
)
