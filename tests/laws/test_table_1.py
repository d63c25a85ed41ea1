"""Table 1 as properties of every norm's feed-forward module: what its re-scalings and re-centrings do to the output."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.nn.utils.parametrizations import weight_norm

import layernorm as ln
from support.drawing import normal

# The laws hold without eps. torch's batch norm refuses 0; 1e-30 is below the last digit of any variance drawn here.
EPS = 1e-30
# Rounding of float64, enlarged by small deviations and cancelled shifts, stays far below the one; a change that is none
# of rounding is of the output's own size.
INVARIANT, CHANGED = 1e-9, 1e-3

TRANSFORMS = {
    "weight matrix re-scaling": lambda W, X, s, v: (s * W, X),
    "weight matrix re-centring": lambda W, X, s, v: (W + v, X),
    "weight vector re-scaling": lambda W, X, s, v: (torch.cat([s * W[:1], W[1:]]), X),
    "dataset re-scaling": lambda W, X, s, v: (W, s * X),
    "dataset re-centring": lambda W, X, s, v: (W, X + v),
    "single case re-scaling": lambda W, X, s, v: (W, torch.cat([s * X[:1], X[1:]])),
}

# In the order of the transforms; I: invariant, -: no. The paper's rows, and those that follow from the equations.
LAWS = {
    "layer": "II-I-I",
    "rms": "I--I-I",
    "batch": "I-III-",
    "batch, unbiased": "I-III-",
    "weight": "I-I---",
    "none": "------",
}


@dataclass
class Case:
    H: int
    I: int  # noqa: E741
    B: int
    scale: float
    seed: int

    def normal(self, *shape):
        self.seed += 1
        return normal(*shape, seed=self.seed)


scales = st.floats(0.02, 0.5) | st.floats(2.0, 50.0)
# Two units, or two cases, are -1 and 1 after a norm, whatever they were: more laws than the table's would hold.
cases = st.builds(Case, st.integers(3, 7), st.integers(2, 5), st.integers(3, 7), scales, st.integers(0, 2**20))
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def norm_of(name, case):
    """The module behind the linear layer, with a random gain and bias."""
    H, kind = case.H, {"eps": EPS, "dtype": torch.float64}
    module = {
        "layer": lambda: ln.LayerNorm(H, **kind),
        "rms": lambda: ln.RMSNorm(H, **kind),
        "batch": lambda: ln.nn.BatchNorm(H, **kind),
        "batch, unbiased": lambda: ln.nn.BatchNorm(H, **kind, unbiased=True),
        "weight": torch.nn.Identity,
        "none": torch.nn.Identity,
    }[name]()
    for p in module.parameters():
        p.data = case.normal(H)
    return module


def layer(name, case):
    """``f(W, X)`` in training mode."""
    norm, gain = norm_of(name, case), case.normal(case.H, 1)
    linear = torch.nn.Linear(case.I, case.H, bias=False, dtype=torch.float64)
    if name == "weight":
        weight_norm(linear, dim=0)
        linear.parametrizations.weight.original0.data = gain

    def output(W, X):
        held = linear.parametrizations.weight.original1 if name == "weight" else linear.weight
        held.data = W
        with torch.no_grad():
            return norm(linear(X))

    return output


def change(after, before):
    return float((after - before).norm() / before.norm())


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("norm", LAWS)
@quick
@given(case=cases)
def test_verdict(norm, transform, case):
    holds = LAWS[norm][list(TRANSFORMS).index(transform)] == "I"
    output = layer(norm, case)
    W, X, shift = case.normal(case.H, case.I), case.normal(case.B, case.I), case.normal(case.I)
    residual = change(output(*TRANSFORMS[transform](W, X, case.scale, shift)), output(W, X))
    assert residual < INVARIANT if holds else residual > CHANGED, residual


@pytest.mark.parametrize("norm", [name for name in LAWS if name != "none"])
@quick
@given(case=cases)
def test_a_negative_scale_of_the_weights_turns_the_sign(norm, case):
    output = layer(norm, case)
    W, X = case.normal(case.H, case.I), case.normal(case.B, case.I)
    plus, minus = output(case.scale * W, X), output(-case.scale * W, X)
    middle = torch.zeros(()) if norm in ("weight", "rms") else None
    if middle is None:  # the bias is what stays
        middle = (plus + minus) / 2
        torch.testing.assert_close(middle, middle[:1].expand_as(middle), rtol=0, atol=1e-9)
    torch.testing.assert_close(minus - middle, middle - plus, rtol=0, atol=1e-9)
    assert change(minus, plus) > CHANGED


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "batch, unbiased"])
@quick
@given(case=cases)
def test_gain_and_bias_come_after_the_norm(norm, case):
    module, x = norm_of(norm, case), case.normal(case.B, case.H)
    plain = norm_of(norm, case)
    for name, p in plain.named_parameters():
        p.data = torch.full_like(p, float(name == "weight"))
    bias = getattr(module, "bias", None)
    with torch.no_grad():
        expected = plain(x) * module.weight + (0.0 if bias is None else bias)
        torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)
