"""Recurrent PPO on CartPole with its velocities hidden: 100,000 steps, half a minute.

    python examples/recurrent_ppo.py [--norm none|layer] [--steps 100000] [--seed 0]

Several environments are stepped in parallel. A rollout is stored with the LSTM's state before its first step. Each
update of the weights is one call of the network over the whole rollout: episodes end and begin inside it, and `reset=`
sets the state to zero there. The usual loop calls the LSTM once for each step instead.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347. The settings are those that
recurrent PPO usually has on small tasks; CartPole needs neither clipped values nor minibatches.

Needs gymnasium.
"""

from __future__ import annotations

import argparse
from collections import deque

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical

import layernorm as ln

ENVIRONMENTS, STEPS, EPOCHS = 16, 128, 8  # B, T of a rollout, updates of the weights with each rollout
HIDDEN, RATE = 64, 2.5e-3
DISCOUNT, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE, LARGEST_GRADIENT = 0.2, 0.01, 0.5, 0.5
POSITIONS = [0, 2]  # the cart's position and the pole's angle in CartPole's observation, without their velocities

State = tuple[Tensor, Tensor]


class Agent(torch.nn.Module):
    """Computes the policy and the value of each step from the observations so far in its episode."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        # The encoder is needed: LN(W x) of the two observed numbers themselves would hide how large they are.
        self.encoder = torch.nn.Sequential(torch.nn.Linear(len(POSITIONS), HIDDEN), torch.nn.Tanh())
        self.lstm = ln.LSTM(HIDDEN, HIDDEN, norm="layer" if norm == "layer" else None)
        self.actor, self.critic = torch.nn.Linear(HIDDEN, 2), torch.nn.Linear(HIDDEN, 1)
        torch.nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, x: Tensor, hx: State, begins: Tensor) -> tuple[Categorical, Tensor, State]:
        """Takes observations (T, B, 2), the state before them, and where an episode begins (T, B).

        Returns the actions' distribution, the values (T, B), and the state after the last step.
        """
        output, hx = self.lstm(self.encoder(x), hx, reset=begins)
        return Categorical(logits=self.actor(output)), self.critic(output).squeeze(-1), hx


def visible(observation: np.ndarray) -> Tensor:
    """The part of the observation that the agent sees. The angle, which is small, is multiplied by 10."""
    return torch.as_tensor(observation[:, POSITIONS] * (1.0, 10.0), dtype=torch.float32)


def advantages_of(rewards: Tensor, values: Tensor, begins: Tensor) -> Tensor:
    """Generalised advantage estimates (T, B) from rewards (T, B), and values and starts with a step more (T + 1, B)."""
    advantages, after = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - begins[t + 1].float()
        error = rewards[t] + DISCOUNT * goes_on * values[t + 1] - values[t]
        after = advantages[t] = error + DISCOUNT * LAMBDA * goes_on * after
    return advantages


def loss_of(agent: Agent, rollout: dict[str, Tensor], hx: State) -> Tensor:
    """PPO's loss over a whole rollout: one call of the network."""
    policy, values, _ = agent(rollout["x"], hx, rollout["begins"])
    ratio = (policy.log_prob(rollout["actions"]) - rollout["log_probs"]).exp()
    advantages = (rollout["advantages"] - rollout["advantages"].mean()) / (rollout["advantages"].std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    error = (values - rollout["returns"]).square().mean()
    return VALUE * error - gain - ENTROPY * policy.entropy().mean()


def train(norm: str, steps: int, seed: int) -> float:
    """Trains an agent; returns the mean number of steps of the last 100 episodes, which is CartPole's return."""
    torch.manual_seed(seed)
    # The step that ends an episode already returns the first observation of the next one.
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    make = [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS
    environments = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=same_step)
    x, begins = visible(environments.reset(seed=seed)[0]), torch.ones(ENVIRONMENTS, dtype=torch.bool)
    agent = Agent(norm)
    optimizer = torch.optim.Adam(agent.parameters(), RATE, eps=1e-5)
    hx = torch.zeros(1, ENVIRONMENTS, HIDDEN), torch.zeros(1, ENVIRONMENTS, HIDDEN)
    held, returns = torch.zeros(ENVIRONMENTS), deque[float](maxlen=100)
    updates = max(1, steps // (ENVIRONMENTS * STEPS))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = RATE * (1 - update / updates)
        before, played = hx, []
        with torch.no_grad():
            for _ in range(STEPS):
                policy, value, hx = agent(x[None], hx, begins[None])
                action = policy.sample()
                observation, _, fell, cut, _ = environments.step(action[0].numpy())
                held += 1
                # For training falling costs 1. An episode that was cut at its longest length counts as ended.
                reward = -torch.as_tensor(fell).float()
                played.append((x, begins, action[0], policy.log_prob(action)[0], value[0], reward))
                x, begins = visible(observation), torch.as_tensor(fell | cut)
                returns += held[begins].tolist()
                held[begins] = 0
            _, last, _ = agent(x[None], hx, begins[None])
        names = ("x", "begins", "actions", "log_probs", "values", "rewards")
        rollout = {name: torch.stack(part) for name, part in zip(names, zip(*played, strict=True), strict=True)}
        values, starts = torch.cat([rollout["values"], last]), torch.cat([rollout["begins"], begins[None]])
        rollout["advantages"] = advantages_of(rollout["rewards"], values, starts)
        rollout["returns"] = rollout["advantages"] + rollout["values"]
        for _ in range(EPOCHS):
            loss = loss_of(agent, rollout, before)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), LARGEST_GRADIENT)
            optimizer.step()
        if (update + 1) % 10 == 0:
            print(f"{(update + 1) * ENVIRONMENTS * STEPS} steps: return {sum(returns) / len(returns):.0f}", flush=True)
    return sum(returns) / max(1, len(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--norm", choices=["none", "layer"], default="layer")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"the last episodes' return is {train(arguments.norm, arguments.steps, arguments.seed):.0f}")


if __name__ == "__main__":
    main()
