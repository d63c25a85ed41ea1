"""A2C with a GRU: a ball is caught that is seen only as it begins to fall."""

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

BALLS, STEPS, UNITS = 16, 5, 64
DISCOUNT, ENTROPY = 0.99, 0.01
WIDE, HIGH, TESTS = 7, 6, 500
"""Columns; steps of a fall; falls of an evaluation."""


def seen_of(state: Tensor) -> Tensor:
    """Returns what is seen, `[B, 14]`, of the step, the ball's column and the paddle's: both columns, one-hot. The ball
    is seen only at the first step."""
    step, ball, paddle = state.unbind(1)
    return torch.cat([F.one_hot(ball, WIDE) * (step == 0).long().unsqueeze(1), F.one_hot(paddle, WIDE)], 1).float()


def moved(state: Tensor, actions: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lets balls fall: the paddle stays (0), goes to the left (1) or to the right (2). Returns the states, rewards, and
    which falls have ended, with 1 for a ball that is caught and -1 for another. There a new ball begins in the given
    columns, `[B]`."""
    step, ball, paddle = state.unbind(1)
    paddle = (paddle + (actions == 2).long() - (actions == 1).long()).clamp(0, WIDE - 1)
    ended = step + 1 >= HIGH
    rewards = torch.where(ball == paddle, 1.0, -1.0) * ended
    later = torch.stack([step + 1, ball, paddle], 1)
    return torch.where(ended.unsqueeze(1), begun(new), later), rewards, ended


def begun(new: Tensor) -> Tensor:
    """Returns the states at the beginning: balls in some columns `[B]`, and the paddle in the middle."""
    return torch.stack([torch.zeros_like(new), new, torch.full_like(new, WIDE // 2)], 1)


def load(folder: Path | None) -> Data:
    """There are no data but the size of the field."""
    return as_data("balls that fall", size=torch.tensor([WIDE, HIGH]))


class Agent(nn.Module):
    """A recurrent network, actor and critic; and the last steps played, in buffers."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.gru = networks(2 * WIDE, UNITS)
        self.policy, self.value = (
            nn.Sequential(
                nn.Linear(UNITS, UNITS), nn.Tanh(), nn.Linear(UNITS, UNITS), nn.Tanh(), nn.Linear(UNITS, size)
            )
            for size in (3, 1)
        )
        for name, parameter in self.named_parameters():
            if "weight" in name:
                last = {"policy.4.weight": 0.01, "value.4.weight": 1.0}
                nn.init.orthogonal_(parameter, 1.0 if name.startswith("gru") else last.get(name, 2**0.5))
            elif not name.startswith("gru"):
                nn.init.zeros_(parameter)
        for name, shape in (("seen", (STEPS, BALLS, 2 * WIDE)), ("goal", (STEPS, BALLS)),
                            ("before", (1, BALLS, UNITS)), ("after", (1, BALLS, UNITS))):  # fmt: skip
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("action", torch.zeros(STEPS, BALLS, dtype=torch.int64))
        self.register_buffer("begins", torch.ones(STEPS + 1, BALLS, dtype=torch.bool))
        self.register_buffer("balls", begun(torch.arange(BALLS) % WIDE))

    def forward(self, seen: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns the logarithms of the actions' probabilities `[T, B, 3]`, the values `[T, B]`, and the state."""
        output, state = self.gru(seen, state, reset=begins)
        return self.policy(output).log_softmax(2), self.value(output).squeeze(2), state


@torch.no_grad()
def play(agent: Any, seed: int) -> None:
    """Plays 5 steps with 16 balls, and notes them in the agent's buffers, with their returns."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(STEPS, BALLS, 1, generator=generator).to(agent.seen.device)
    new = torch.randint(WIDE, (STEPS, BALLS), generator=generator).to(agent.seen.device)
    agent.before.copy_(agent.after)
    state, values, rewards = agent.before.clone(), [], torch.zeros_like(agent.goal)
    agent.begins[0] = agent.begins[-1]
    for step in range(STEPS):
        agent.seen[step] = seen_of(agent.balls)
        chances, value, state = agent(agent.seen[step : step + 1], agent.begins[step : step + 1], state)
        agent.action[step] = (draws[step] > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        balls, rewards[step], agent.begins[step + 1] = moved(agent.balls, agent.action[step], new[step])
        agent.balls.copy_(balls)
        values.append(value[0])
    agent.after.copy_(state)
    values.append(agent(seen_of(agent.balls).unsqueeze(0), agent.begins[-1:], state)[1][0])
    agent.goal.copy_(advantages(rewards, values, agent.begins, DISCOUNT, 1.0) + torch.stack(values[:-1]))


@torch.no_grad()
def caught(agent: Any, seed: int) -> float:
    """Computes what share of 500 balls is caught, with actions drawn by the policy."""
    generator, device = torch.Generator().manual_seed(seed), agent.seen.device
    new = torch.randint(WIDE, (TESTS,), generator=generator).to(device)
    balls, state, rewards = begun(new), None, torch.zeros(TESTS)
    begins = torch.ones(1, TESTS, dtype=torch.bool, device=device)
    for _ in range(HIGH):
        chances, _, state = agent(seen_of(balls).unsqueeze(0), begins, state)
        draws = torch.rand(TESTS, 1, generator=generator).to(device)
        actions = (draws > chances[0].exp().cumsum(1)[:, :2]).sum(1)
        balls, rewards, _ = moved(balls, actions, new)
        begins = torch.zeros_like(begins)
    return float((rewards > 0).double().mean())


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    agent = Agent(networks)

    def loss(agent: Any, update: int) -> Tensor:
        play(agent, derive_seed(seed, NOISE, update))
        chances, values, _ = agent(agent.seen, agent.begins[:-1], agent.before)
        advantage = agent.goal - values
        gained = (advantage.detach() * chances.gather(2, agent.action.unsqueeze(2)).squeeze(2)).mean()
        entropy = -(chances.exp() * chances).sum(2).mean()
        return 0.5 * advantage.square().mean() - gained - ENTROPY * entropy

    generator = torch.Generator().manual_seed(seed)
    seen = seen_of(begun(torch.randint(WIDE, (STEPS * BALLS,), generator=generator))).view(STEPS, BALLS, -1)
    example = (seen, torch.zeros(STEPS, BALLS, dtype=torch.bool))
    evaluate, test = (functools.partial(caught, seed=derive_seed(EVALUATION, number)) for number in (0, 1))
    return Parts(agent, loss, evaluate, example, test=test)


PROGRAM = Program(
    source="https://github.com/ikostrikov/pytorch-a2c-ppo-acktr-gail (--algo a2c --recurrent-policy)",
    settings="A2C: RMSprop 7e-4, alpha 0.99, eps 1e-5, 16 environments, 5 steps, discount 0.99, entropy 0.01, half of "
    "the values' loss, a GRU of 64 units, two layers of 64 for actor and critic, orthogonal weights, gradient's norm "
    "clipped to 0.5. Here torch's biases for 0 in the GRU, and a ball that falls for six steps.",
    network="GRU",
    metric=Metric("caught", "balls caught", rising=True, percent=True),
    chance=0.14,
    margin=0.05,
    optimizer=functools.partial(torch.optim.RMSprop, alpha=0.99, eps=1e-5),
    rate=7e-4,
    updates=3000,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
    confirms="start",
)
