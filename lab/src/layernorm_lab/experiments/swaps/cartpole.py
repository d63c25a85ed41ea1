"""Gymnasium's poles on carts, seen without their velocities, for the tasks of reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from torch import Tensor, nn

from ...train.batches import EVALUATION, derive_seed
from .program import Data, as_data

POSITIONS = [0, 2]
"""Of the cart's place and speed, and the pole's angle and its speed, those that are seen."""

LONGEST = 500
"""The steps after which an episode ends."""


def load_cartpole(folder: Path | None) -> Data:
    """Loads nothing: the data are the version of gymnasium, whose environment this is."""
    return as_data(f"CartPole-v1 of gymnasium {gymnasium.__version__}")


class Poles(nn.Module):
    """Several poles. The buffers have what a resumed run needs; between `resume` and `keep` the poles are played.

    An episode that ends at its longest length counts as one that ends by a fall.
    """

    state: Tensor
    steps: Tensor

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        self.poles = CartPoleVectorEnv(num_envs=count)
        self.poles.reset(seed=seed)
        self.random = np.random.default_rng(seed)
        self.register_buffer("state", torch.zeros(4, count, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros(count, dtype=torch.int32))
        self.keep()

    def resume(self, seed: int) -> None:
        """Sets the poles to where they were kept. New episodes begin as the seed says."""
        self.poles.state, self.poles.steps = self.state.cpu().numpy().copy(), self.steps.cpu().numpy().copy()
        self.random = np.random.default_rng(seed)

    def keep(self) -> None:
        """Keeps the poles as they are."""
        self.state.copy_(torch.from_numpy(np.asarray(self.poles.state)))
        self.steps.copy_(torch.from_numpy(self.poles.steps))

    def seen(self) -> Tensor:
        """Returns what is seen of each pole, `[B, 2]`."""
        return torch.as_tensor(np.asarray(self.poles.state)[POSITIONS].T, dtype=torch.float32, device=self.state.device)

    def step(self, actions: Tensor) -> Tensor:
        """Moves each cart to the left (0) or to the right (1). Returns which episodes have ended, `[B]`; there a new
        one has begun."""
        _, _, fell, late, _ = self.poles.step(actions.cpu().numpy())
        ended = fell | late
        self.poles.state[:, ended] = self.random.uniform(-0.05, 0.05, (4, int(ended.sum())))  # type: ignore[index]
        self.poles.steps[ended] = 0
        self.poles.prev_done[:] = False
        return torch.as_tensor(ended, device=self.state.device)


def steps_held(choose: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], device: torch.device) -> float:
    """Computes for how many steps a policy holds 32 poles on average, always the same ones.

    `choose`: (what is seen `[1, B, 2]`, where an episode begins `[1, B]`, the state or None) -> actions `[B]`, state.
    """
    poles = Poles(32, derive_seed(EVALUATION)).to(device)
    held = torch.full((32,), LONGEST, device=device)
    begins, state = torch.ones(1, 32, dtype=torch.bool, device=device), None
    for step in range(1, LONGEST):
        actions, state = choose(poles.seen().unsqueeze(0), begins, state)
        held = torch.where(poles.step(actions), held.clamp(max=step), held)
        begins = torch.zeros_like(begins)
        if bool((held <= step).all()):
            break
    return float(held.double().mean())
