"""PPO with an LSTM: a red door is to be opened, then a blue one; that the red one was opened is to be remembered."""

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

ROOMS, STEPS, EPOCHS, PARTS, WINDOW, UNITS = 16, 128, 4, 8, 4, 64
DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
WIDE, LONGEST, TESTS = 9, 50, 400
"""Cells in a row, with a door at each end; the steps after which an episode ends; episodes of an evaluation."""


def seen_of(state: Tensor) -> Tensor:
    """Returns what is seen in rooms `[B, 4]` of place, the red door's side, whether it was opened, and step: a door to
    the left, one to the right, a red one, a blue one. Whether a door was opened is not seen."""
    place, side, _, _ = state.unbind(1)
    left, right = place == 0, place == WIDE - 1
    red = torch.where(side == 0, left, right)
    return torch.stack([left, right, red, (left | right) & ~red], 1).float()


def moved(state: Tensor, actions: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Moves in rooms: 0 to the left, 1 to the right, 2 opens a door. Returns the rooms, rewards, and which have ended.

    Opening the blue door ends the episode. If the red one was opened before, the reward is 1, less up to 0.9 for the
    steps that it took. Where an episode has ended, a new one begins with the given places and sides, `[B, 2]`.
    """
    place, side, opened, step = state.unbind(1)
    _, _, red, blue = seen_of(state).bool().unbind(1)
    opens = actions == 2
    rewards = (1 - 0.9 * (step + 1) / LONGEST) * (opens & blue & (opened == 1))
    ended = (opens & blue) | (step + 1 >= LONGEST)
    opened = opened | (opens & red).long()
    place = (place + (actions == 1).long() - (actions == 0).long()).clamp(0, WIDE - 1)
    later = torch.stack([place, side, opened, step + 1], 1)
    first = torch.cat([new, torch.zeros_like(new)], 1)
    return torch.where(ended.unsqueeze(1), first, later), rewards, ended


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    """Draws where episodes begin, between the doors, and the red door's side, `[*shape, 2]`."""
    places = 1 + torch.randint(WIDE - 2, shape, generator=generator)
    return torch.stack([places, torch.randint(2, shape, generator=generator)], -1)


def load(folder: Path | None) -> Data:
    """There are no data but the room's size."""
    return as_data("red and blue doors", size=torch.tensor([WIDE, LONGEST]))


class Agent(nn.Module):
    """An encoder, a recurrent network, actor and critic; and the last steps played, in buffers."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.encoder, self.lstm = nn.Linear(4, UNITS), networks(UNITS, UNITS)
        self.policy, self.value = (
            nn.Sequential(nn.Linear(UNITS, 64), nn.Tanh(), nn.Linear(64, size)) for size in (3, 1)
        )
        for layer in (self.encoder, *self.policy, *self.value):
            if isinstance(layer, nn.Linear):
                weight = nn.init.normal_(layer.weight).data
                weight /= weight.norm(dim=1, keepdim=True)
                nn.init.zeros_(layer.bias)
        for name, shape in (("seen", (STEPS, ROOMS, 4)), ("chance", (STEPS, ROOMS)), ("advantage", (STEPS, ROOMS)),
                            ("guess", (STEPS, ROOMS)), ("states", (2, STEPS + 1, ROOMS, UNITS))):  # fmt: skip
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("action", torch.zeros(STEPS, ROOMS, dtype=torch.int64))
        self.register_buffer("begins", torch.ones(STEPS + 1, ROOMS, dtype=torch.bool))
        self.register_buffer("rooms", torch.tensor([[3, 0, 0, 0], [3, 1, 0, 0]] * (ROOMS // 2)))

    def forward(self, seen: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns the logarithms of the actions' probabilities `[T, B, 3]`, the values `[T, B]`, and the state."""
        output, state = self.lstm(self.encoder(seen).relu(), state, reset=begins)
        return self.policy(output).log_softmax(2), self.value(output).squeeze(2), state


@torch.no_grad()
def play(agent: Any, seed: int) -> None:
    """Plays 128 steps in 16 rooms, and notes them in the agent's buffers, with the states and the advantages."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(STEPS, ROOMS, 1, generator=generator).to(agent.seen.device)
    new = drawn(generator, STEPS, ROOMS).to(agent.seen.device)
    rewards = torch.zeros_like(agent.chance)
    agent.states[:, 0], agent.begins[0] = agent.states[:, -1].clone(), agent.begins[-1].clone()
    for step in range(STEPS):
        agent.seen[step] = seen_of(agent.rooms)
        state = tuple(agent.states[:, step : step + 1])
        chances, value, state = agent(agent.seen[step : step + 1], agent.begins[step : step + 1], state)
        agent.action[step] = (draws[step] > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        agent.chance[step] = chances[0].gather(1, agent.action[step].unsqueeze(1)).squeeze(1)
        rooms, rewards[step], agent.begins[step + 1] = moved(agent.rooms, agent.action[step], new[step])
        agent.rooms.copy_(rooms)
        agent.guess[step], agent.states[:, step + 1] = value[0], torch.cat(state)
    last = agent(seen_of(agent.rooms).unsqueeze(0), agent.begins[-1:], tuple(agent.states[:, -1:]))[1]
    agent.advantage.copy_(advantages(rewards, [*agent.guess, *last], agent.begins, DISCOUNT, LAMBDA))


@torch.no_grad()
def solved(agent: Any, seed: int) -> float:
    """Computes in what share of 400 rooms the agent opens both doors in order, with actions drawn by its policy."""
    generator, device = torch.Generator().manual_seed(seed), agent.seen.device
    new = drawn(generator, TESTS).to(device)
    rooms = torch.cat([new, torch.zeros_like(new)], 1)
    open_yet, right = torch.ones(TESTS, dtype=torch.bool, device=device), 0.0
    begins, state = torch.ones(1, TESTS, dtype=torch.bool, device=device), None
    for _ in range(LONGEST):
        chances, _, state = agent(seen_of(rooms).unsqueeze(0), begins, state)
        draws = torch.rand(TESTS, 1, generator=generator).to(device)
        actions = (draws > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        rooms, rewards, ended = moved(rooms, actions, new)
        right += float((open_yet & (rewards > 0)).sum())
        open_yet, begins = open_yet & ~ended, torch.zeros_like(begins)
    return right / TESTS


def windows(odd: bool, generator: torch.Generator) -> Tensor:
    """Draws an order of the windows of 4 steps of all rooms, as `[2, windows]` of first steps and rooms. In odd epochs
    they begin two steps later."""
    first = torch.arange(0, STEPS - WINDOW * odd, WINDOW) + WINDOW // 2 * odd
    pairs = torch.cartesian_prod(first, torch.arange(ROOMS)).T
    return pairs[:, torch.randperm(pairs.shape[1], generator=generator)]


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    agent = Agent(networks)

    def loss(agent: Any, update: int) -> Tensor:
        rollout, left = divmod(update, EPOCHS * PARTS)
        if left == 0:
            play(agent, derive_seed(seed, NOISE, rollout))
        epoch, part = divmod(left, PARTS)
        generator = torch.Generator().manual_seed(derive_seed(seed, NOISE, rollout, 1 + epoch))
        first, rooms = windows(epoch % 2 == 1, generator).chunk(PARTS, 1)[part].to(agent.seen.device)
        steps = first + torch.arange(WINDOW, device=first.device).unsqueeze(1)  # [4, windows]
        state = tuple(agent.states[:, first, rooms].unsqueeze(1))
        chances, values, _ = agent(agent.seen[steps, rooms], agent.begins[steps, rooms], state)
        chosen = chances.gather(2, agent.action[steps, rooms].unsqueeze(2)).squeeze(2)
        ratio, advantage = (chosen - agent.chance[steps, rooms]).exp(), agent.advantage[steps, rooms]
        gained = torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        guess = agent.guess[steps, rooms]
        near, goal = guess + (values - guess).clamp(-CLIP, CLIP), guess + advantage
        worth = torch.max((values - goal).square(), (near - goal).square()).mean()
        entropy = -(chances.exp() * chances).sum(2).mean()
        return -gained - ENTROPY * entropy + 0.5 * worth

    generator = torch.Generator().manual_seed(seed)
    rooms = F.pad(drawn(generator, STEPS // WINDOW * ROOMS // PARTS), (0, 2))
    rooms[:, 0] = torch.randint(WIDE, (len(rooms),), generator=generator)
    seen = seen_of(rooms).expand(WINDOW, -1, -1)
    example = (seen, torch.zeros(seen.shape[:2], dtype=torch.bool))
    evaluate, test = (functools.partial(solved, seed=derive_seed(EVALUATION, number)) for number in (0, 1))
    return Parts(agent, loss, evaluate, example, test=test)


PROGRAM = Program(
    source="https://github.com/lcswillems/rl-starter-files (README.md, scripts/train.py, model.py) with "
    "https://github.com/lcswillems/torch-ac (torch_ac/algos/ppo.py)",
    settings="PPO: Adam 1e-3, 16 environments, 128 steps, 4 epochs, batch 256, gradients of 4 steps, discount 0.99, "
    "lambda 0.95, clipping at 0.2, entropy 0.01, linear weights of length 1, gradient's norm clipped to 0.5. Here "
    "nine cells in a row for RedBlueDoors, one linear layer for convolutions, and the rollout's states in all epochs.",
    network="LSTM",
    metric=Metric("solved", "doors opened in order", rising=True, percent=True),
    chance=0.04,
    margin=0.05,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=EPOCHS * PARTS * 75,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
    confirms="start",
)
