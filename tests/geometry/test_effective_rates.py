"""How fast the weights, the gains and the biases under the norm of the sum learn, as the page on swaps derives it."""

import math

import pytest
import torch

import layernorm as ln
from layernorm import geometry as geo

H, INPUTS, ROUNDING = 64, 12, 1e-10
"""Units and inputs; float64, sums of a few hundred terms."""


def layer(deviation):
    """Weights, biases and one input, for which the summed inputs have a given deviation over the units."""
    generator = torch.Generator().manual_seed(0)
    W, b, x, delta = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((H, INPUTS), (H,), (1, INPUTS), (H,))
    )
    W *= deviation / (W @ x[0]).std(correction=0)
    return W, b, x, delta


def outputs(W, b, x, gain, eps):
    return geo.normalized_glm("layer", eps)({"weight": W, "bias": b, "gain": gain.expand(H)}, x)[0]


def moved(eps, gain, deviation, optimizer):
    """By how much one step of an optimiser in W changes the outputs, for a loss whose gradient in them is given."""
    W, b, x, delta = layer(deviation)
    gain, plain = torch.tensor(gain, dtype=torch.float64), W @ x[0] + b
    changes = []
    for of in (lambda w: outputs(w, b, x, gain, eps), lambda w: w @ x[0] + b):
        trained = W.clone().requires_grad_()
        step = optimizer([trained])
        (delta * of(trained)).sum().backward()
        step.step()
        with torch.no_grad():
            changes.append(of(trained) - of(W))
    assert plain.isfinite().all()
    return changes[0].norm() / changes[1].norm()


STARTS = {
    # start: eps, gain, then in the ratio to the plain network: size of the outputs, rate of W under SGD and under Adam,
    # and what a growth of W does, for a deviation of 0.1, as in the page's table
    "1": (1e-5, 1.0, 10.0, 100.0, 10.0, 0.010),
    "0.3": (1e-5, 0.3, 3.0, 9.0, 3.0, 0.003),
    "matched": (1e-5, 0.1, 1.0, 1.0, 1.0, 0.001),
    "0.3, eps 0.1": (0.1, 0.3, 0.9, 0.82, 0.9, 0.82),
    "1, eps 1": (1.0, 1.0, 1.0, 0.99, 1.0, 0.985),
}


@pytest.mark.parametrize("start", STARTS)
def test_the_table_of_the_starts(start):
    """Against autograd and the optimisers. The projection takes away the parts along 1 and z, two of 64 directions, and
    Adam's steps along them, so that the ratios are a few percent off the derived ones, beside the table's rounding."""
    eps, gain, size, sgd, adam, growth = STARTS[start]
    W, b, x, _ = layer(0.1)
    g = torch.tensor(gain, dtype=torch.float64)
    eta = outputs(W, torch.zeros_like(b), x, g, eps)
    assert float(eta.std(correction=0) / 0.1) == pytest.approx(size, rel=0.02)
    rate = 1e-6  # a step of first order
    assert float(moved(eps, gain, 0.1, lambda p: torch.optim.SGD(p, rate))) == pytest.approx(sgd, rel=0.05)
    assert float(moved(eps, gain, 0.1, lambda p: torch.optim.Adam(p, rate, eps=1e-30))) == pytest.approx(adam, rel=0.1)
    grown = torch.func.jvp(
        lambda t: outputs(t * W, b, x, g, eps), (torch.ones(()).double(),), (torch.ones(()).double(),)
    )[1]
    assert float(grown.std(correction=0) / 0.1) == pytest.approx(growth, rel=0.06, abs=5e-4)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.01, 1.0])
def test_the_gradient_is_the_plain_one_times_gain_over_deviation_less_two_directions(eps):
    r"""dL/dW = (g/s) (1 - 11^T/n - zz^T/n) delta x^T, with s^2 = sigma^2 + eps; that of the gains is delta z."""
    W, b, x, delta = layer(0.1)
    g = torch.linspace(0.5, 2, H, dtype=torch.float64)
    of = lambda W, b, g: (delta * geo.normalized_glm("layer", eps)({"weight": W, "bias": b, "gain": g}, x)[0]).sum()  # noqa: E731
    found = torch.func.grad(of, argnums=(0, 1, 2))(W, b, g)
    a = W @ x[0]
    s = (a.var(correction=0) + eps).sqrt()
    z = (a - a.mean()) / s
    d = g * delta
    expected = (d - d.mean() - z * (z * d).mean()).outer(x[0]) / s
    torch.testing.assert_close(found[0], expected, rtol=ROUNDING, atol=ROUNDING)
    torch.testing.assert_close(found[1], delta, rtol=ROUNDING, atol=ROUNDING)
    torch.testing.assert_close(found[2], delta * z, rtol=ROUNDING, atol=ROUNDING)
    # along W itself the norm leaves eps / s^2 of it: all of it where eps is much larger than the variance
    along = (found[0] * W).sum()
    torch.testing.assert_close(along, (d * z).sum() * eps / s**2, rtol=1e-8, atol=1e-9)


def test_a_step_of_sgd_turns_the_weights_by_the_gain_and_one_of_adam_does_not():
    """So the outputs move by (g/s)^2 under SGD, and by g/s under Adam."""
    W, b, x, delta = layer(0.1)

    def turned(gain, adam):
        def loss(weight):
            return (delta * outputs(weight, b, x, torch.tensor(gain, dtype=torch.float64), 1e-5)).sum()

        return geo.step_angles(loss, W, 1e-6, adam=adam).angles[0].mean()

    assert float(turned(1.0, False) / turned(0.1, False)) == pytest.approx(10, rel=1e-3)
    assert float(turned(1.0, True) / turned(0.1, True)) == pytest.approx(1, rel=1e-3)


def test_fisher_along_gains_and_biases_does_not_see_the_scale_of_the_weights():
    """That along the weights is divided by its square."""
    W, b, x, _ = layer(0.1)
    gain = torch.full((H,), 0.3, dtype=torch.float64)
    x = torch.cat([x, x.flip(1), x.roll(3)])  # several cases
    found = [
        geo.fisher_normalized(scale * W, b, gain, x, "gaussian", "layer", form="exact").diagonal().view(H, INPUTS + 2)
        for scale in (1, 10)
    ]
    torch.testing.assert_close(found[1][:, :INPUTS], found[0][:, :INPUTS] / 100, rtol=1e-9, atol=0)
    torch.testing.assert_close(found[1][:, INPUTS:], found[0][:, INPUTS:], rtol=1e-9, atol=0)
    torch.testing.assert_close(found[0][:, INPUTS], torch.ones(H, dtype=torch.float64))  # the biases
    assert float(found[0][:, INPUTS + 1].mean()) == pytest.approx(1)  # the gains: the mean of z^2


def trained(lstm, x):
    output, _ = lstm(x)
    output.square().sum().backward()
    return output.detach(), {name: parameter.grad for name, parameter in lstm.named_parameters()}


def test_an_lstm_does_not_see_the_scale_of_its_weights_and_its_gradient_is_divided_by_it():
    torch.manual_seed(0)
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    lstm = ln.LSTM(5, 6, formula="sum", eps=0.0, dtype=torch.float64)
    grown = ln.LSTM(5, 6, formula="sum", eps=0.0, dtype=torch.float64)
    grown.load_state_dict({k: 4 * v if k.startswith("weight") else v for k, v in lstm.state_dict().items()})
    (output, grads), (other, others) = trained(lstm, x), trained(grown, x)
    torch.testing.assert_close(other, output, rtol=ROUNDING, atol=ROUNDING)
    for name, grad in grads.items():
        torch.testing.assert_close(
            others[name] * (4 if name.startswith("weight") else 1), grad, rtol=1e-8, atol=ROUNDING
        )


def test_with_a_large_eps_it_bends_into_the_plain_lstm():
    """That with the mean over the units taken off the weights. What is left falls as variance / eps."""
    torch.manual_seed(0)
    x = torch.randn(7, 3, 5, dtype=torch.float64)
    plain = torch.nn.LSTM(5, 6, dtype=torch.float64)
    centred = torch.nn.LSTM(5, 6, dtype=torch.float64)
    centred.load_state_dict({k: v - v.mean(0) if k.startswith("weight") else v for k, v in plain.state_dict().items()})
    expected, apart = centred(x)[0].detach(), []
    for eps in (1.0, 1e2, 1e4):
        lstm = ln.LSTM(5, 6, formula="sum", eps=eps, gain_init=math.sqrt(eps), dtype=torch.float64)
        lstm.load_state_dict(plain.state_dict(), strict=False)
        apart.append(float((lstm(x)[0].detach() - expected).norm() / expected.norm()))
    assert apart[0] < 0.1
    assert apart[1] / apart[2] == pytest.approx(100, rel=0.05)
