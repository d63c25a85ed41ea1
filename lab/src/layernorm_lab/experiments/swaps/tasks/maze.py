"""Recurrent PPO in a maze: a sign at the start says which way to turn at the end."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ....train.batches import EVALUATION, NOISE, derive_seed
from ..program import Data, Networks, Parts, Program, as_data
from ..rollout import advantages

MAZES, STEPS, EPOCHS, PARTS, UNITS = 8, 128, 4, 4, 64
DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.1, 0.01
LONG, LONGEST = 4, 12
"""The steps from the start to the junction, and those after which an episode ends."""


def seen_of(state: Tensor) -> Tensor:
    """Returns what is seen in mazes `[B, 3]` of place, side and step: the sign at the start, and where walls are."""
    place, side, _ = state.unbind(1)
    start, end = place == 0, place == LONG
    return torch.stack([side * start, start.long(), (~start & ~end).long(), end.long()], 1).float()


def moved(state: Tensor, actions: Tensor, sides: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moves in mazes: 0 ahead, 1 to the left, 2 to the right. Returns the mazes, rewards, and which have ended.

    Before the junction only ahead goes on, any other way costs 0.1. There a turn ends the episode, with 1 for the side
    of the sign and -0.1 for the other. Where an episode has ended, a new one begins with the given side, -1 or 1.
    """
    place, side, step = state.unbind(1)
    end = place == LONG
    turned = end & (actions > 0)
    right = turned & ((2 * actions - 3) == side)
    ended = turned | (step + 1 >= LONGEST)
    rewards = right.float() - 0.1 * ((actions > 0) & ~right | end & (actions == 0)).float()
    place = (place + (~end & (actions == 0)).long()) * (~ended).long()
    return torch.stack([place, torch.where(ended, sides, side), (step + 1) * (~ended).long()], 1), rewards, ended


def load(folder: Path | None) -> Data:
    """There are no data but the maze's size."""
    return as_data("T-maze", size=torch.tensor([LONG, LONGEST]))


class Agent(nn.Module):
    """An encoder, a recurrent network, actor and critic; and the last steps played, in buffers."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, UNITS)
        self.lstm = networks(UNITS, UNITS)
        self.policy, self.value = nn.Linear(UNITS, 3), nn.Linear(UNITS, 1)
        for name, parameter in self.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter, {"encoder": 2**0.5, "policy": 0.01}.get(name.split(".")[0], 1.0))
        for name, shape in (("seen", (STEPS, MAZES, 4)), ("chance", (STEPS, MAZES)), ("advantage", (STEPS, MAZES)),
                            ("gain", (STEPS, MAZES)), ("guess", (STEPS, MAZES)), ("before", (2, 1, MAZES, UNITS)),
                            ("after", (2, 1, MAZES, UNITS))):  # fmt: skip
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("action", torch.zeros(STEPS, MAZES, dtype=torch.int64))
        self.register_buffer("begins", torch.ones(STEPS + 1, MAZES, dtype=torch.bool))
        self.register_buffer("mazes", torch.tensor([[0, 1, 0], [0, -1, 0]] * (MAZES // 2)))

    def forward(self, seen: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns the logarithms of the actions' probabilities `[T, B, 3]`, the values `[T, B]`, and the state."""
        output, state = self.lstm(self.encoder(seen).relu(), state, reset=begins)
        return self.policy(output).log_softmax(2), self.value(output).squeeze(2), state


@torch.no_grad()
def play(agent: Any, seed: int) -> None:
    """Plays 128 steps in 8 mazes, and notes them in the agent's buffers, with their advantages and returns."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(STEPS, MAZES, generator=generator).to(agent.seen.device)
    sides = 2 * torch.randint(2, (STEPS, MAZES), generator=generator).to(agent.seen.device) - 1
    rewards = torch.zeros_like(agent.chance)
    agent.before.copy_(agent.after)
    state = tuple(agent.before)
    agent.begins[0] = agent.begins[-1]
    for step in range(STEPS):
        agent.seen[step] = seen_of(agent.mazes)
        chances, value, state = agent(agent.seen[step : step + 1], agent.begins[step : step + 1], state)
        agent.action[step] = (draws[step].unsqueeze(1) > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        agent.chance[step] = chances[0].gather(1, agent.action[step].unsqueeze(1)).squeeze(1)
        mazes, rewards[step], agent.begins[step + 1] = moved(agent.mazes, agent.action[step], sides[step])
        agent.mazes.copy_(mazes)
        agent.guess[step] = value[0]
    agent.after.copy_(torch.stack(state))
    last = agent(seen_of(agent.mazes).unsqueeze(0), agent.begins[-1:], state)[1]
    values = [*agent.guess, *last]
    agent.advantage.copy_(advantages(rewards, values, agent.begins, DISCOUNT, LAMBDA))
    agent.gain.copy_(agent.advantage + agent.guess)


@torch.no_grad()
def solved(agent: Any, seed: int) -> float:
    """Computes in what share of 200 mazes the agent turns to the right side, with actions drawn by its policy."""
    generator, device = torch.Generator().manual_seed(seed), agent.seen.device
    mazes = torch.zeros(200, 3, dtype=torch.int64, device=device)
    mazes[:, 1] = 2 * torch.randint(2, (200,), generator=generator) - 1
    open_yet, right = torch.ones(200, dtype=torch.bool, device=device), 0.0
    begins, state = torch.ones(1, 200, dtype=torch.bool, device=device), None
    for _ in range(LONGEST):
        chances, _, state = agent(seen_of(mazes).unsqueeze(0), begins, state)
        draws = torch.rand(200, 1, generator=generator).to(device)
        actions = (draws > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        mazes, rewards, ended = moved(mazes, actions, mazes[:, 1])
        right += float((open_yet & (rewards == 1)).sum())
        open_yet, begins = open_yet & ~ended, torch.zeros_like(begins)
    return right / 200


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    agent = Agent(networks)

    def loss(agent: Any, update: int) -> Tensor:
        rollout, left = divmod(update, EPOCHS * PARTS)
        if left == 0:
            play(agent, derive_seed(seed, NOISE, rollout))
        epoch, part = divmod(left, PARTS)
        generator = torch.Generator().manual_seed(derive_seed(seed, NOISE, rollout, epoch))
        rows = torch.randperm(MAZES, generator=generator).chunk(PARTS)[part].to(agent.seen.device)
        chances, values, _ = agent(agent.seen[:, rows], agent.begins[:-1, rows], tuple(agent.before[:, :, rows]))
        ratio = (chances.gather(2, agent.action[:, rows].unsqueeze(2)).squeeze(2) - agent.chance[:, rows]).exp()
        advantage = agent.advantage[:, rows]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gained = torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        near = agent.guess[:, rows] + (values - agent.guess[:, rows]).clamp(-CLIP, CLIP)
        goal = agent.gain[:, rows]
        worth = torch.max((values - goal).square(), (near - goal).square()).mean()
        entropy = -(chances.exp() * chances).sum(2).mean()
        return -gained - ENTROPY * entropy + 0.25 * worth

    generator = torch.Generator().manual_seed(seed)
    seen = F.one_hot(torch.randint(4, (STEPS, MAZES), generator=generator), 4).float()
    example = (seen, torch.zeros(STEPS, MAZES, dtype=torch.bool))
    evaluate, test = (functools.partial(solved, seed=derive_seed(EVALUATION, number)) for number in (0, 1))
    return Parts(agent, loss, evaluate, example, test=test)


PROGRAM = Program(
    source="https://github.com/vwxyzjn/cleanrl (ppo_atari_lstm.py)",
    settings="Adam 2.5e-4, falling to 0, eps 1e-5; 8 environments, 128 steps, 4 epochs of 4 parts, discount 0.99, "
    "lambda 0.95, clipping at 0.1, entropy 0.01, orthogonal weights, gradient's norm clipped to 0.5. Here 64 units for "
    "128 behind one layer, torch's biases for 0, and a T-maze of 4 steps.",
    network="LSTM",
    metric=Metric("solved", "mazes solved", rising=True, percent=True),
    chance=0.0,
    margin=0.1,
    optimizer=functools.partial(torch.optim.Adam, eps=1e-5),
    rate=2.5e-4,
    updates=16 * 180,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
    decay=1.0,
    confirms="line",
)
