"""Lyapunov exponents and gradients against lag: by QR of full Jacobians, by eigenvalues, by autograd, by invariance."""

import math

import numpy as np
import pytest
import torch

import layernorm as ln
from layernorm import geometry as geo

KINDS = [
    pytest.param(lambda: ln.LSTM(3, 5, norm=None), id="LSTM"),
    pytest.param(lambda: ln.LSTM(3, 5), id="layer-LSTM"),
    pytest.param(lambda: ln.GRU(3, 7, norm="rms"), id="rms-GRU"),
    pytest.param(lambda: ln.RNN(3, 8, num_layers=2, batch_first=True), id="layer-RNN-of-two-layers"),
    pytest.param(lambda: ln.LSTM(3, 6, num_layers=2, proj_size=2, norm="weight"), id="weight-LSTM-projected"),
    pytest.param(lambda: ln.GRUCell(3, 7), id="layer-GRUCell"),
    pytest.param(lambda: torch.nn.LSTM(3, 5), id="torch.nn.LSTM"),
]


def loud(make, seed=0):
    """A small network in float64 whose weights are large enough for dynamics of its own."""
    torch.manual_seed(seed)
    module = make().double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.mul_(3 if name.startswith("weight") else 1)
    return module


def driven(module, steps, cases=2, seed=1):
    """Step, state away from zero, inputs."""
    g = torch.Generator().manual_seed(seed)
    step, state = geo.dynamics(module, cases)
    start = 0.3 * torch.randn(state.shape, generator=g, dtype=state.dtype)
    return step, start, torch.randn(steps, cases, 3, generator=g, dtype=state.dtype)


def by_full_jacobians(step, state, inputs, warmup, start):
    """All exponents of one case, as the textbook has it: every Jacobian whole, reverse mode, numpy's QR."""
    Q, total = np.linalg.qr(start)[0], 0.0
    for t, x in enumerate(inputs):
        J = torch.autograd.functional.jacobian(lambda s, x=x: step(x[None], s[None])[0], state)
        state = step(x[None], state[None])[0].detach()
        Q, R = np.linalg.qr(J.numpy() @ Q)
        if t >= warmup:
            total = total + np.log(np.abs(np.diag(R)))
    return total / (len(inputs) - warmup)


@pytest.mark.parametrize("make", KINDS)
def test_exponents_are_those_of_full_jacobians(make):
    """Every start gives its own finite sum, so both take the same; 1e-9: rounding, which the growth does not blow up
    as the vectors are made orthonormal at each step."""
    module = loud(make)
    step, state, inputs = driven(module, 16)
    start = torch.randn(2, state.shape[1], 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = geo.lyapunov(step, state, inputs, k=3, warmup=4, tangents=start)
    one, _ = geo.dynamics(module, 1)
    for case in range(2):
        rest = torch.randn(state.shape[1], state.shape[1] - 3, generator=torch.Generator().manual_seed(3))
        whole = torch.cat([start[case], rest.double()], 1).numpy()
        expected = by_full_jacobians(one, state[case], inputs[:, case], 4, whole)
        assert found.cases[case].numpy() == pytest.approx(expected[:3], abs=1e-9)
    assert torch.equal(found.exponents, found.cases.mean(0))


@pytest.mark.parametrize("norm", [None, "layer", "rms"])
def test_the_largest_exponent_does_not_depend_on_the_start(norm):
    """A vector drawn at random turns into the leading direction as exp(-gap * steps): 1e-6 once the gap is known."""
    module = loud(lambda: ln.RNN(3, 4, norm=norm))
    step, state, inputs = driven(module, 120, cases=1)
    expected = by_full_jacobians(step, state[0], inputs[:, 0], 80, np.eye(4))
    assert (expected[0] - expected[1]) * 80 > -math.log(1e-6), "choose another seed: the two largest are too near"
    for seed in (0, 1):
        found = geo.lyapunov(step, state, inputs, warmup=80, generator=torch.Generator().manual_seed(seed))
        assert float(found.exponents) == pytest.approx(expected[0], abs=1e-6)


def test_exponents_of_a_linear_network_are_its_eigenvalues():
    g = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(4, 4, generator=g, dtype=torch.float64)).Q
    values = torch.tensor([1.5, -0.9, 0.4, 1e-3], dtype=torch.float64)
    A = U @ values.diag() @ U.T
    state, inputs = torch.randn(2, 4, generator=g, dtype=torch.float64), torch.zeros(400, 2, 1)
    found = geo.lyapunov(lambda x, s: s @ A.T, state, inputs, k=4, warmup=100, generator=g)
    assert found.exponents.tolist() == pytest.approx(values.abs().log().tolist(), abs=1e-9)
    back = geo.gradient_by_lag(lambda x, s: s @ A.T, state, inputs, cotangents=U[:, 0].expand(2, 4))
    assert back[:, 0].tolist() == pytest.approx([lag * math.log(1.5) for lag in range(401)], rel=1e-9, abs=1e-12)


def test_all_exponents_add_up_to_the_determinant():
    module = loud(lambda: ln.GRU(3, 4))
    step, state, inputs = driven(module, 30, cases=1)
    found = geo.lyapunov(step, state, inputs, k=4, generator=torch.Generator().manual_seed(0))
    logs, s = 0.0, state
    for x in inputs:
        J = torch.autograd.functional.jacobian(lambda s, x=x: step(x, s)[0], s)[:, 0]
        logs, s = logs + float(torch.linalg.slogdet(J)[1]), step(x, s).detach()
    assert float(found.exponents.sum()) == pytest.approx(logs / 30, abs=1e-9)


def test_a_dead_state_forgets_wholly():
    """A ReLU network whose units are all off: the exponent is -infinity and the gradient 0, not NaN."""
    module = ln.RNN(3, 4, nonlinearity="relu", norm=None).double()
    with torch.no_grad():
        module.bias_ih_l0.fill_(-1e6)
    step, state, inputs = driven(module, 6)
    assert geo.lyapunov(step, state, inputs, k=2).cases.tolist() == [[-math.inf] * 2] * 2
    assert geo.gradient_by_lag(step, state, inputs)[1:].tolist() == [[-math.inf] * 2] * 6


@pytest.mark.parametrize("make", KINDS)
def test_gradients_by_lag_are_autograds(make):
    module = loud(make)
    step, state, inputs = driven(module, 12)
    v = torch.randn(state.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = geo.gradient_by_lag(step, state, inputs, cotangents=v)
    states = [state.requires_grad_()]
    for x in inputs:
        states.append(step(x, states[-1]))
        states[-1].retain_grad()
    (states[-1] * v).sum().backward()
    norms = torch.stack([s.grad.norm(dim=1) for s in reversed(states)])
    assert found.exp().detach().numpy() == pytest.approx(norms.numpy(), rel=1e-10)


def test_gradients_by_lag_leave_the_range_of_numbers_unharmed():
    found = geo.gradient_by_lag(lambda x, s: s * 1e-3, torch.ones(1, 2), torch.zeros(200, 1, 1))
    assert float(found[-1]) == pytest.approx(200 * math.log(1e-3), rel=1e-5)


def test_a_case_without_a_gradient_stays_without_one():
    cotangents = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # of a loss that leaves out the first case
    found = geo.gradient_by_lag(lambda x, s: s / 2, torch.ones(2, 2), torch.zeros(3, 2, 1), cotangents=cotangents)
    assert found[:, 0].tolist() == [-math.inf] * 4
    assert float(found[-1, 1]) == pytest.approx(-3 * math.log(2), rel=1e-6)
    with pytest.raises(ValueError, match="expected cotangents to be finite"):
        geo.gradient_by_lag(lambda x, s: s, torch.ones(2, 2), torch.zeros(3, 2, 1), cotangents=cotangents / 0)


OTHERS = [(ln.RNN, "layer"), (ln.LSTM, "rms"), (ln.GRU, "layer")]


@pytest.mark.parametrize(
    ("network", "norm"),
    [
        (ln.RNN, "rms"),
        (ln.LSTM, "layer"),
        (ln.GRU, "rms"),
        *(pytest.param(*it, marks=pytest.mark.long) for it in OTHERS),
    ],
)
def test_the_scale_of_the_weights_is_not_seen_without_eps(norm, network):
    """Section 3.1's invariance, on the dynamics: with eps 0 no factor of the weights changes an exponent."""
    found = []
    for scale in (1.0, 10.0):
        torch.manual_seed(0)
        module = network(3, 6, norm=norm, eps=0.0).double()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.mul_(scale if name.startswith("weight") else 1)
        step, state, inputs = driven(module, 30)
        found.append(geo.lyapunov(step, state, inputs, generator=torch.Generator().manual_seed(0)).cases)
    assert found[0].numpy() == pytest.approx(found[1].numpy(), abs=1e-8)


def test_dynamics_are_the_modules_own_steps():
    module = ln.LSTM(3, 5, num_layers=2).double()
    step, state = geo.dynamics(module, 4)
    inputs = torch.randn(6, 4, 3, dtype=torch.float64)
    for x in inputs:
        state = step(x, state)
    _, (h, c) = module(inputs)
    expected = torch.cat([h.transpose(0, 1).flatten(1), c.transpose(0, 1).flatten(1)], 1)
    assert state.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-12)


@pytest.mark.parametrize(
    ("module", "kind", "message"),
    [
        (torch.nn.Linear(3, 4), TypeError, "expected module to be an RNN, LSTM, GRU or one of their cells, got Linear"),
        (ln.LSTM(3, 4, bidirectional=True), ValueError, "a bidirectional network has no step"),
        (ln.GRU(3, 4, norm="batch"), ValueError, "under batch norm a case's step depends on the other cases"),
        (ln.GRU(3, 4, num_layers=2, dropout=0.5), ValueError, r"call module.eval\(\) first"),
        (ln.LSTM(3, 4, zoneout=(0.0, 0.1)), ValueError, r"call module.eval\(\) first"),
    ],
)
def test_networks_without_such_dynamics_are_refused(module, kind, message):
    with pytest.raises(kind, match=message):
        geo.dynamics(module, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": torch.zeros(0, 2, 3)}, r"expected inputs of shape \(T, 2, ...\), T at least 1, got \(0, 2, 3\)"),
        ({"inputs": torch.zeros(5, 3, 3)}, r"expected inputs of shape \(T, 2, ...\)"),
        ({"k": 5}, "expected k to be one of 1 to 4, got 5"),
        ({"warmup": 5}, "expected warmup to be one of 0 to 4, got 5"),
        ({"state": torch.zeros(4)}, r"expected state of shape \(B, N\), not empty, got \(4,\)"),
        ({"tangents": torch.zeros(2, 4, 2)}, r"expected tangents of shape \(2, 4, 1\)"),
        ({"inputs": torch.full((5, 2, 3), math.nan)}, "expected the state to stay finite, got NaN or infinity at step"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    step, state = geo.dynamics(ln.GRU(3, 4), 2)
    with pytest.raises(ValueError, match=message):
        geo.lyapunov(step, **{"state": state, "inputs": torch.zeros(5, 2, 3), **given})
