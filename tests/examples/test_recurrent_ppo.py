"""The example of recurrent PPO: it runs, and its one call over a rollout is what was played step by step."""

import pytest
import torch

from support.processes import program
from support.repository import ROOT

pytest.importorskip("gymnasium", reason="gymnasium is not installed")
FILE = ROOT / "examples" / "recurrent_ppo.py"


@pytest.mark.parametrize("norm", [pytest.param("none", marks=pytest.mark.long), "layer"])
def test_it_runs_in_a_process_of_its_own(norm, tmp_path):
    said = program(FILE, "--norm", norm, "--steps", 2048, folder=tmp_path, warnings="error").stdout
    assert float(said.rsplit(maxsplit=1)[-1]) > 5


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_a_rollout_in_one_call_is_the_play_step_by_step(example, norm):
    agent, T, B = example.Agent(norm), 12, 3
    x, begins = torch.randn(T, B, 2), torch.rand(T, B) < 0.3
    before = hx = torch.randn(1, B, example.HIDDEN), torch.randn(1, B, example.HIDDEN)
    steps = []
    for t in range(T):
        policy, value, hx = agent(x[t : t + 1], hx, begins[t : t + 1])
        steps.append((policy.logits, value))
    policy, values, last = agent(x, before, begins)
    logits, stepped = (torch.cat(part) for part in zip(*steps, strict=True))
    torch.testing.assert_close((policy.logits, values, last), (logits, stepped, hx))


def test_advantages_are_sums_of_discounted_errors_within_an_episode(example):
    T, B = 7, 2
    rewards, values = torch.randn(T, B, dtype=torch.float64), torch.randn(T + 1, B, dtype=torch.float64)
    begins = torch.zeros(T + 1, B, dtype=torch.bool)
    begins[3, 0] = begins[T, 1] = True
    found = example.advantages_of(rewards, values, begins)
    for b, ends in ((0, (3, T)), (1, (T,))):
        for t in range(T):
            end = next(end for end in ends if end > t)
            expected = 0.0
            for s in range(t, end):
                after = 0.0 if begins[s + 1, b] else values[s + 1, b]
                error = rewards[s, b] + example.DISCOUNT * after - values[s, b]
                expected += (example.DISCOUNT * example.LAMBDA) ** (s - t) * error
            torch.testing.assert_close(found[t, b], torch.as_tensor(expected))
