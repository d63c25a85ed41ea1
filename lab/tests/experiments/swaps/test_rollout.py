"""What agents learn from a rollout, against the sum that defines it."""

import torch

from layernorm_lab.experiments.swaps.rollout import advantages


def test_advantages_are_discounted_sums_that_end_with_the_episode():
    """A_t = sum over k of (discount * decay)^k * delta_{t+k}, up to the last step of the episode, with
    delta_t = r_t + discount * V_{t+1} - V_t, where V_{t+1} counts only if the episode goes on."""
    g = torch.Generator().manual_seed(0)
    T, B, discount, decay = 6, 3, 0.5, 0.75  # exact in float32, too
    rewards, values = (torch.randn(n, B, dtype=torch.float64, generator=g) for n in (T, T + 1))
    begins = torch.zeros(T + 1, B, dtype=torch.bool)
    begins[0] = begins[2, 0] = begins[T, 1] = True  # one ends in the middle, one with the rollout, one goes on
    found = advantages(rewards, values.unbind(), begins, discount, decay)
    for b in range(B):
        for t in range(T):
            total, factor = 0.0, 1.0
            for k in range(t, T):
                goes_on = not begins[k + 1, b]
                total += factor * float(rewards[k, b] + discount * goes_on * values[k + 1, b] - values[k, b])
                factor *= discount * decay
                if not goes_on:
                    break
            assert abs(float(found[t, b]) - total) < 1e-12, (t, b)
