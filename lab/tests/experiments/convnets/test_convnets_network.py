"""The network of 6.7 is ConvPool-CNN-C, and its arms differ in the norm alone."""

import math

import pytest
import torch
from torch import nn

from layernorm_lab.experiments.convnets.config import Config
from layernorm_lab.experiments.convnets.experiment import EXPERIMENT, scaled
from layernorm_lab.experiments.convnets.network import Unit, build_convnet

ALL = ("none", "layer", "layer-shared", "layer-channels", "batch", "weight", "group")


def convolutions(model):
    return [unit[0] for unit in model if isinstance(unit, Unit)]


def test_shapes_and_number_of_parameters_at_the_full_width():
    """Weights by layer, from the table: 3x3 of 3 to 96 channels, twice 96 to 96, 96 to 192, twice 192 to 192, one more
    without padding, two of 1x1, and the linear layer; a bias for every output."""
    config = EXPERIMENT.presets["paper"].config
    model = build_convnet(Config(**{**vars(config), "norm": "none"}))
    shapes = [tuple(layer.weight.shape) for layer in convolutions(model)]
    assert shapes == [(96, 3, 3, 3), (96, 96, 3, 3), (96, 96, 3, 3), (192, 96, 3, 3), (192, 192, 3, 3),
                      (192, 192, 3, 3), (192, 192, 3, 3), (192, 192, 1, 1), (192, 192, 1, 1)]  # fmt: skip
    weights = 2592 + 2 * 82944 + 165888 + 3 * 331776 + 2 * 36864 + 1920
    biases = 3 * 96 + 6 * 192 + 10
    assert sum(p.numel() for p in model.parameters()) == weights + biases == 1_406_794
    maps = torch.zeros(1, 3, 32, 32)
    sides = []
    for layer in model.eval():
        maps = layer(maps)
        if isinstance(layer, Unit):
            sides.append(tuple(maps.shape[1:]))
    assert sides == [(96, 32, 32)] * 3 + [(192, 16, 16)] * 3 + [(192, 6, 6)] * 3
    assert maps.shape == (1, 10)
    normed = build_convnet(Config(**{**vars(config), "norm": "layer"}))
    gains = [unit[1].weight.permute(2, 0, 1) for unit in normed if isinstance(unit, Unit)]  # [H, W, C] to [C, H, W]
    assert [tuple(gain.shape) for gain in gains] == sides, "a gain for each unit"


@pytest.mark.parametrize(
    ("norm", "names"),
    [
        ("none", ["0.bias", "0.weight"]),
        ("weight", ["0.bias", "0.parametrizations.weight.original0", "0.parametrizations.weight.original1"]),
        ("layer", ["0.weight", "1.bias", "1.weight"]),
        ("layer-shared", ["0.weight", "1.bias", "1.weight"]),
        ("layer-channels", ["0.weight", "1.bias", "1.weight"]),
        ("batch", ["0.weight", "1.bias", "1.weight"]),
        ("group", ["0.weight", "1.bias", "1.weight"]),
    ],
)
def test_the_parameters_of_each_norm(norm, names):
    """Every channel has one bias, the convolution's or the norm's, and one gain if its norm has gains. With layer norm
    every unit has its own."""
    unit = Unit(norm, 3, 8, 3, padding=1, side=6)
    assert sorted(name for name, _ in unit.named_parameters()) == names
    sizes = {name: p.numel() for name, p in unit.named_parameters() if p.numel() != 8 * 27}
    assert set(sizes.values()) == {8 * 6 * 6 if norm == "layer" else 8}
    last = [name for name, _ in build_convnet(Config(norm=norm, width=4)).named_parameters()][-2:]
    assert last == ["16.weight", "16.bias"]


def test_one_seed_gives_every_norm_the_same_weights_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    weights = {}
    for norm in ALL:
        model = build_convnet(Config(norm=norm, width=4, seed=3))
        weights[norm] = [*(layer.weight.detach() for layer in convolutions(model)), model[-1].weight.detach()]
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        assert not any(p.any() for p in biases)
    for norm in ALL:
        for ours, plain in zip(weights[norm], weights["none"], strict=True):
            # weight norm forms g v / |v|, three roundings in float32
            torch.testing.assert_close(ours, plain, rtol=5e-7 if norm == "weight" else 0, atol=0)
    other = build_convnet(Config(norm="none", width=4, seed=4))
    assert not torch.equal(convolutions(other)[0].weight, weights["none"][0])
    assert torch.equal(torch.get_rng_state(), state)


OVER = {"layer": (1, 2, 3), "layer-shared": (1, 2, 3), "layer-channels": (1,), "batch": (0, 2, 3)}
"""The dimensions of `[B, C, H, W]` that each norm takes its moments over."""


@pytest.mark.parametrize("norm", ALL)
def test_a_unit_is_its_equations(norm):
    """In float64 loops of plain operations; the gains and biases are no longer what they start as."""
    torch.manual_seed(0)
    unit = Unit(norm, 3, 64, 3, padding=1, side=6)
    with torch.no_grad():
        for p in unit.parameters():
            if p.shape in ((64,), (6, 6, 64), (64, 1, 1, 1)):
                p.copy_(torch.rand_like(p) + 0.5)
    wide = 6 if norm == "layer" else 5  # only where every unit has its own gain, the size of the maps is given
    images = torch.randn(4, 3, 6, wide)
    parameters = {name: p.detach().double() for name, p in unit.named_parameters()}
    weight = parameters.get("0.weight")
    if norm == "weight":
        gain, direction = (parameters[f"0.parametrizations.weight.original{number}"] for number in (0, 1))
        weight = gain * direction / direction.square().sum((1, 2, 3), keepdim=True).sqrt()
    padded = nn.functional.pad(images.double(), (1, 1, 1, 1))
    patches = padded.unfold(2, 3, 1).unfold(3, 3, 1)  # [B, 3, H, W, 3, 3]
    a = torch.einsum("bihwrs,oirs->bohw", patches, weight)
    if norm in OVER:
        mean, var = a.mean(OVER[norm], keepdim=True), a.var(OVER[norm], correction=0, keepdim=True)
    elif norm == "group":
        groups = a.view(4, 8, 8, 6, 5)  # 8 groups of 8 channels
        mean, var = groups.mean((2, 3, 4)), groups.var((2, 3, 4), correction=0)
        mean, var = (moment.repeat_interleave(8, 1)[:, :, None, None] for moment in (mean, var))
    if norm not in ("none", "weight"):
        # [H, W, C] of layer norm, [C] of the others
        gain, bias = (parameters[f"1.{name}"].movedim(-1, 0) for name in ("weight", "bias"))
        if norm != "layer":
            gain, bias = gain[:, None, None], bias[:, None, None]
        a = (a - mean) / (var + 1e-5).sqrt() * gain + bias
    else:
        a = a + parameters["0.bias"][:, None, None]
    expected = torch.where(a > 0, a, 0.1 * a)
    # sums of 27 products and moments of up to 2304 values in float32
    torch.testing.assert_close(unit(images).double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(unit(images.to(memory_format=torch.channels_last)), unit(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ALL)
def test_maps_lie_alike_under_every_norm(norm):
    """So that convolutions and pooling are as fast, and a seed gives all arms the same dropout masks: these go by the
    places in memory."""
    dropped = {}
    for name in ("none", norm):
        maps = torch.ones(2, 3, 32, 32).to(memory_format=torch.channels_last)
        for layer in build_convnet(Config(norm=name, width=4)):
            maps = layer(maps)
            if isinstance(layer, Unit | nn.MaxPool2d):
                assert maps.is_contiguous(memory_format=torch.channels_last)
            if isinstance(layer, nn.Dropout):
                torch.manual_seed(7)
                dropped.setdefault(name, []).append(layer(torch.ones_like(maps)))
    for ours, plain in zip(dropped[norm], dropped["none"], strict=True):
        assert torch.equal(ours, plain)


def test_layer_shared_is_group_norm_of_one_group():
    """With every unit's gain and bias those of its channel, layer norm with its own for each unit is the same."""
    torch.manual_seed(0)
    shared, own = (Unit(norm, 3, 8, 3, padding=1, side=6) for norm in ("layer-shared", "layer"))
    gain, bias = torch.rand(8) + 0.5, torch.randn(8)
    with torch.no_grad():
        shared[1].weight.copy_(gain)
        shared[1].bias.copy_(bias)
        own[1].weight.copy_(gain)
        own[1].bias.copy_(bias)
    summed = torch.randn(4, 8, 6, 6)
    expected = nn.functional.group_norm(summed, 1, gain, bias)
    assert torch.equal(shared[1](summed), expected)
    # other orders of the sums over 288 values in float32
    torch.testing.assert_close(own[1](summed), expected, rtol=1e-4, atol=1e-5)


def test_noise_and_dropout_are_in_training_only():
    model = build_convnet(Config(norm="none", width=4))
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    without = build_convnet(Config(norm="none", width=4, dropout=0.0, noise=0.0))
    torch.testing.assert_close(without(images), model(images), rtol=1e-5, atol=1e-6)  # the same products in float32
    noisy = build_convnet(Config(norm="none", width=4, noise=0.5))[0](torch.zeros(100, 3, 32, 32))
    # of 307,200 values the deviation's own is 0.0006
    assert float(noisy.std()) == pytest.approx(0.5, abs=0.004)


def test_pixels_become_minus_one_to_one():
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    assert scaled(pixels).flatten().tolist() == pytest.approx([-1, 1, -0.6])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 1}, "--width must be at least 2, got 1"),
        ({"dropout": 1.0}, "--dropout must be less than 1, got 1.0"),
        ({"noise": -0.1}, "--noise must be a finite number, at least 0, got -0.1"),
        ({"learning_rate": math.inf}, "--learning-rate must be a finite number, greater than 0, got inf"),
        ({"held_out": 0}, "--held-out must be at least 1, got 0"),
        ({"decay": 1.5}, "--decay must be at most 1, got 1.5"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)
