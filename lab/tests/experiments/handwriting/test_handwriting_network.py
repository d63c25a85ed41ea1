"""The numerics of 6.5: the window, the whole sequence against steps, cut derivatives, the number of parameters."""

import math

import numpy as np
import pytest
import torch

from layernorm_lab.experiments.handwriting import mixture
from layernorm_lab.experiments.handwriting.config import Config
from layernorm_lab.experiments.handwriting.network import Synthesis, build_synthesis, clipped, one_hot
from layernorm_lab.experiments.handwriting.window import read_window, window_step

NORMS = (None, "layer", "rms", "weight")


def small(norm, spread=0.3, **sizes):
    """A tiny network in float64 whose every parameter matters."""
    torch.manual_seed(3)
    model = Synthesis(norm, units=5, mixtures=2, components=3, pace=0.5, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
    return model


def case(T=6, B=2, U=4):
    """Points, texts of which one is shorter, and points to predict."""
    random = torch.Generator().manual_seed(1)
    points = torch.randn(T + 1, B, 3, generator=random, dtype=torch.float64)
    points[..., 2] = (points[..., 2] > 0).double()
    text = torch.randint(57, (B, U), generator=random)
    return points[:-1], text, torch.tensor([U, U - 2]), points[1:]


def test_the_window_is_a_slow_loop():
    B, K, U = 2, 3, 4
    random = torch.Generator().manual_seed(0)
    p = torch.randn(B, 3 * K, generator=random, dtype=torch.float64)
    kappa = torch.rand(B, K, generator=random, dtype=torch.float64)
    codes = one_hot(torch.randint(57, (B, U), generator=random), torch.tensor([4, 2]), torch.float64)
    phi, reading, moved = window_step(p, kappa, codes)
    for b in range(B):
        expected = np.zeros(57)
        for u in range(1, U + 2):
            weight = 0.0
            for k in range(K):
                alpha, beta, way = (math.exp(float(p[b, k + K * part])) for part in range(3))
                place = float(kappa[b, k]) + way
                assert float(moved[b, k]) == pytest.approx(place)
                weight += alpha * math.exp(-beta * (place - u) ** 2)
            assert float(phi[b, u - 1]) == pytest.approx(weight)
            if u <= U:
                expected += weight * codes[b, u - 1].numpy()
        np.testing.assert_allclose(reading[b], expected)


@pytest.mark.parametrize("norm", NORMS)
def test_the_whole_sequence_is_the_steps_in_value_and_gradient(norm):
    model = small(norm)
    points, text, characters, after = case()
    whole = model(points, text, characters)
    state, codes, steps = model.start(2), one_hot(text, characters, torch.float64), []
    for point in points:
        y, _, state = model.step(point, codes, state)
        steps.append(y)
    # the same sums in another order, in float64
    torch.testing.assert_close(whole, torch.stack(steps), rtol=1e-10, atol=1e-12)
    found, expected = (
        torch.autograd.grad(0.01 * mixture.log_density(y, after).sum(), list(model.parameters()))
        for y in (whole, torch.stack(steps))
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_the_window_for_training_is_the_window():
    """Value and gradient, by the plain form and by differences."""
    random = torch.Generator().manual_seed(0)
    p = torch.randn(2, 9, generator=random, dtype=torch.float64).requires_grad_()
    kappa = torch.rand(2, 3, generator=random, dtype=torch.float64).requires_grad_()
    codes = one_hot(torch.randint(57, (2, 4), generator=random), torch.tensor([4, 2]), torch.float64)
    places = torch.arange(1, 5, dtype=torch.float64)
    # the same sums in another order, in float64
    torch.testing.assert_close(
        read_window(p, kappa, codes, places), window_step(p, kappa, codes)[1:], rtol=1e-12, atol=1e-12
    )
    assert torch.autograd.gradcheck(lambda p, kappa: read_window(p, kappa, codes, places), (p, kappa))


def test_the_loss_by_differences():
    after = case(T=3)[-1]
    y = 0.5 * torch.randn(3, 2, 13, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: mixture.log_density(y, after), y.requires_grad_())


def test_derivatives_are_cut():
    x = torch.zeros(3, requires_grad=True)
    (clipped(x * 1.0, 2.0) * torch.tensor([1.0, -5.0, 7.0])).sum().backward()
    assert x.grad.tolist() == [1.0, -2.0, 2.0]


@pytest.mark.parametrize("where", ["gate_clip", "input_clip"])
def test_derivatives_of_the_lstms_are_cut_between_the_points_too(where):
    points, text, characters, _ = case()
    codes = one_hot(text, characters, torch.float64)

    found = []
    for limit in (1e-3, math.inf):
        model = small("layer", **{where: limit})
        h, w = model.lowest(points, codes)
        found.append(torch.autograd.grad(w[-1].sum() + 0 * h.sum(), model.lstm1.weight_hh)[0])
    assert not torch.allclose(*found)


@pytest.mark.parametrize(("clip", "gates", "inputs"), [("gates", 2.5, math.inf), ("inputs", math.inf, 2.5)])
def test_the_limits_are_those_of_one_sequences_loss(clip, gates, inputs):
    model = build_synthesis(Config(units=8, batch_size=4, clip=clip))
    lstms = (model.lstm1, model.lstm2, model.lstm3)
    assert [lstm.recurrence.gate_clip for lstm in lstms] == [gates] * 3
    assert (model.input_clip, model.output_clip) == (inputs, 25.0)
    # each of two processes has twice its share of the loss, as their gradients are averaged
    assert build_synthesis(Config(units=8, batch_size=4, clip=clip), processes=2).output_clip == 50.0


@pytest.mark.parametrize(("norm", "count"), [("none", 3_654_951), ("layer", 3_666_951)])
def test_the_network_has_3_65_million_parameters(norm, count):
    model = build_synthesis(Config(norm=norm))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.output.out_features == 121
    assert model.window.out_features == 30


def test_one_seed_gives_every_norm_the_same_weights_and_biases():
    none, layer = (build_synthesis(Config(norm=norm, units=8, forget_bias=1.0)) for norm in ("none", "layer"))
    for name, parameter in none.named_parameters():
        assert torch.equal(parameter, layer.get_parameter(name)), name
    biases = layer.lstm2.bias_ih_l0.view(4, 8)
    assert (biases[1] > 0.5).all(), "the forget gate's"
    assert biases[[0, 2, 3]].abs().max() <= 8**-0.5
    assert biases[0].std() > 0.05


def test_gains_count_where_there_are_gains():
    assert build_synthesis(Config(norm="none", gain_init=0.3, units=8)).lstm1.gain_init is None
    model = build_synthesis(Config(norm="layer", gain_init=0.3, units=8))
    assert all(bool((p == 0.3).all()) for name, p in model.named_parameters() if "gain" in name)
    assert build_synthesis(Config(norm="weight", units=8)).lstm1.gain_init is None
    assert Config(norm="none", gain_init="steady") == Config(norm="none")


def test_the_steady_start_has_smaller_recurrent_gains():
    model = build_synthesis(Config(norm="layer", gain_init="steady", units=8))
    gains = {name.partition(".")[2]: p.unique().tolist() for name, p in model.named_parameters() if "gain" in name}
    assert len(gains) == 6, "lstm2 and lstm3 share their names"
    for name, values in gains.items():
        assert values == pytest.approx([0.6 if "gain_hh" in name else 1.0]), name


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_the_window_starts_quiet(norm):
    """The reading is about as large as a point's offsets, which have deviation 1, not 17 times that."""
    model = build_synthesis(Config(norm=norm, units=32))
    torch.manual_seed(0)
    text = torch.randint(1, 57, (4, 20))
    with torch.no_grad():
        _, reading = model.lowest(torch.randn(30, 4, 3), one_hot(text, torch.full((4,), 20), torch.float32))
    assert 0.3 < float(reading.sum(2).mean()) < 3
