"""Statistics by distance from the border, on images and weights made so that they are known by hand."""

import math

import pytest
import torch
from torch import nn

from layernorm_lab.experiments.convnets.border import SHOWN, Statistics, distances, measure_units
from layernorm_lab.experiments.convnets.config import Config
from layernorm_lab.experiments.convnets.network import Unit, build_convnet


def test_distances():
    assert distances(4, 5).tolist() == [[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert distances(5, 5)[2].tolist() == [0, 1, 2, 1, 0]


@pytest.fixture
def counting():
    """A convolution that counts the pixels under its kernel, all 1, less 20: inside 27 - 20 = 7, so on; at an edge
    18 - 20, in a corner 12 - 20, which the leaky ReLU makes -0.2 and -0.8."""
    unit = Unit("none", 3, 1, 3, padding=1, side=8)
    with torch.no_grad():
        unit[0].weight.fill_(1.0)
        unit[0].bias.fill_(-20.0)
    return nn.Sequential(nn.Identity(), unit)


def test_a_white_image_turns_off_the_units_at_the_border(counting):
    with torch.no_grad():
        (layer,) = measure_units(counting, torch.ones(450, 3, 8, 8))  # more than are looked at together
    # of the 28 units at the border 24 lie at an edge, 4 in a corner
    mean = (24 * -0.2 + 4 * -0.8) / 28
    deviation = math.sqrt((24 * 0.2**2 + 4 * 0.8**2) / 28 - mean**2)
    expected = {"share": [0, 1, 1, 1], "mean": [mean, 7, 7, 7], "deviation": [deviation, 0, 0, 0]}
    for name, row in zip(SHOWN, layer.profile().tolist(), strict=True):
        # the products are float32's; a deviation of 0 is the root of what squares of 7 leave behind
        assert row == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name
    # the centre are distances 2 and 3
    contrast = [[0, 1], [mean, 7], [deviation, 0]]
    for row, values in zip(layer.contrast().tolist(), contrast, strict=True):
        assert row == pytest.approx(values, rel=1e-5, abs=1e-6)
    assert layer.explained().tolist() == pytest.approx([1, 0], abs=1e-12)


def test_half_the_images_black(counting):
    """A black image leaves every unit off, at -2 after the leaky ReLU."""
    images = torch.cat([torch.ones(3, 3, 8, 8), torch.zeros(3, 3, 8, 8)])
    with torch.no_grad():
        (layer,) = measure_units(counting, images)
    share, mean, deviation = layer.profile().tolist()
    assert share == pytest.approx([0, 0.5, 0.5, 0.5])
    assert mean[1:] == pytest.approx([2.5] * 3, rel=1e-5)  # of 7 and -2, both rounded to float32
    assert deviation[1:] == pytest.approx([4.5] * 3, rel=1e-5)


def test_channels_that_differ_explain_what_distance_does_not():
    maps = torch.stack([torch.ones(6, 6), -torch.ones(6, 6)])[None]
    layer = Statistics((2, 6, 6))
    layer.add(maps)
    assert layer.explained().tolist() == pytest.approx([0, 1], abs=1e-12)
    assert layer.contrast()[0].tolist() == [0.5, 0.5]
    # the second channel is on at the border: its 20 of 36 units
    maps[0, 1][distances(6, 6) == 0] = 1.0
    layer = Statistics((2, 6, 6))
    layer.add(maps)
    # of 72 units 56 are on; by distance shares of 1 and 1/2, by channel of 1 and 20/36
    total = 56 / 72 * 16 / 72
    by_distance = 20 / 36 * (1 - 56 / 72) ** 2 + 16 / 36 * (1 / 2 - 56 / 72) ** 2
    by_channel = ((1 - 56 / 72) ** 2 + (20 / 36 - 56 / 72) ** 2) / 2
    assert layer.explained().tolist() == pytest.approx([by_distance / total, by_channel / total], rel=1e-12)


def test_units_that_are_all_alike_are_explained_by_nothing():
    layer = Statistics((2, 3, 3))
    layer.add(torch.ones(4, 2, 3, 3))
    assert layer.explained().tolist() == [0, 0]
    assert layer.profile().tolist() == [[1, 1], [1, 1], [0, 0]]


def test_every_convolution_of_the_network_is_looked_at_in_the_order_of_the_layers():
    model = build_convnet(Config(norm="batch", width=4)).eval()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        found = measure_units(model, images)
        first = model[1](images)
    assert [layer.profile().shape[1] for layer in found] == [16] * 3 + [8] * 3 + [3] * 3
    share = float((first > 0).double().mean())
    assert float(found[0].sums[0].mean()) / found[0].images == pytest.approx(share, rel=1e-12)
