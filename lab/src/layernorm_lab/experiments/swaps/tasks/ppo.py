"""Recurrent PPO: a pole is balanced on a cart, and only positions are seen."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ....train.batches import NOISE, derive_seed
from ..cartpole import Poles, load_cartpole, steps_held
from ..program import Data, Networks, Parts, Program
from ..rollout import advantages

POLES, STEPS, EPOCHS, UNITS = 8, 32, 20, 64
DISCOUNT, LAMBDA, CLIP = 0.98, 0.8, 0.2


class Agent(nn.Module):
    """An actor and a critic, each with its own recurrent network; and the last steps played, in buffers."""

    def __init__(self, networks: Networks, seed: int) -> None:
        super().__init__()
        self.actor, self.critic = networks(2, UNITS), networks(2, UNITS)
        self.policy, self.value = (
            nn.Sequential(nn.Linear(UNITS, 64), nn.Tanh(), nn.Linear(64, size)) for size in (2, 1)
        )
        self.poles = Poles(POLES, derive_seed(seed, NOISE))
        for name, shape in (("seen", (STEPS, POLES, 2)), ("chance", (STEPS, POLES)), ("advantage", (STEPS, POLES)),
                            ("gain", (STEPS, POLES)), ("before", (4, 1, POLES, UNITS)),
                            ("after", (4, 1, POLES, UNITS))):  # fmt: skip
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("action", torch.zeros(STEPS, POLES, dtype=torch.int64))
        self.register_buffer("begins", torch.ones(STEPS + 1, POLES, dtype=torch.bool))

    def forward(self, seen: Tensor, begins: Tensor, state: Any = None) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Returns the logarithms of the actions' probabilities `[T, B, 2]`, the values `[T, B]`, and the states."""
        acted, first = self.actor(seen, None if state is None else tuple(state[:2]), reset=begins)
        judged, second = self.critic(seen, None if state is None else tuple(state[2:]), reset=begins)
        return self.policy(acted).log_softmax(2), self.value(judged).squeeze(2), (*first, *second)


@torch.no_grad()
def play(agent: Any, seed: int) -> None:
    """Plays 32 steps with 8 poles, and notes them in the agent's buffers, with their advantages and returns."""
    draws = torch.rand(STEPS, POLES, generator=torch.Generator().manual_seed(seed)).to(agent.seen.device)
    agent.poles.resume(seed)
    agent.before.copy_(agent.after)
    state, values = tuple(agent.before), []
    agent.begins[0] = agent.begins[-1]
    for step in range(STEPS):
        agent.seen[step] = agent.poles.seen()
        chances, value, state = agent(agent.seen[step : step + 1], agent.begins[step : step + 1], state)
        agent.action[step] = draws[step] < chances[0, :, 1].exp()
        agent.chance[step] = chances[0].gather(1, agent.action[step].unsqueeze(1)).squeeze(1)
        agent.begins[step + 1] = agent.poles.step(agent.action[step])
        values.append(value[0])
    agent.poles.keep()
    agent.after.copy_(torch.stack(state))
    values.append(agent(agent.poles.seen().unsqueeze(0), agent.begins[-1:], state)[1][0])
    rewards = torch.ones_like(agent.advantage)  # for every step
    agent.advantage.copy_(advantages(rewards, values, agent.begins, DISCOUNT, LAMBDA))
    agent.gain.copy_(agent.advantage + torch.stack(values[:-1]))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    agent = Agent(networks, seed)

    def loss(agent: Any, update: int) -> Tensor:
        rollout, epoch = divmod(update, EPOCHS)
        if epoch == 0:
            play(agent, derive_seed(seed, NOISE, rollout))
        chances, values, _ = agent(agent.seen, agent.begins[:-1], tuple(agent.before))
        ratio = (chances.gather(2, agent.action.unsqueeze(2)).squeeze(2) - agent.chance).exp()
        advantage = (agent.advantage - agent.advantage.mean()) / (agent.advantage.std() + 1e-8)
        clip = CLIP * (1 - update / updates)
        clipped = ratio.clamp(1 - clip, 1 + clip)
        return -torch.min(advantage * ratio, advantage * clipped).mean() + 0.5 * F.mse_loss(values, agent.gain)

    def evaluate(agent: Any) -> float:
        def choose(seen: Tensor, begins: Tensor, state: Any) -> tuple[Tensor, Any]:
            chances, _, state = agent(seen, begins, state)
            return chances[0].argmax(1), state

        return steps_held(choose, agent.seen.device)

    generator = torch.Generator().manual_seed(seed)
    seen = 0.1 * torch.randn(STEPS, POLES, 2, generator=generator)
    begins = torch.zeros(STEPS, POLES, dtype=torch.bool)
    return Parts(agent, loss, evaluate, (seen, begins))


PROGRAM = Program(
    source="https://github.com/DLR-RM/rl-baselines3-zoo (hyperparams/ppo_lstm.yml, CartPoleNoVel-v1)",
    settings="Adam 1e-3 and clipping at 0.2, both falling to 0; 8 poles, 32 steps, 20 epochs, discount 0.98, lambda "
    "0.8, gradient's norm clipped to 0.5. Here 64 units for 256, and torch's initial weights.",
    network="LSTM",
    metric=Metric("steps", "steps held", rising=True),
    chance=9.0,
    margin=20.0,
    optimizer=functools.partial(torch.optim.Adam, eps=1e-5),
    rate=1e-3,
    updates=20 * 300,
    load=load_cartpole,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
    decay=1.0,
)
