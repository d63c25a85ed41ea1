"""Where experiment 6.7 departs from the paper, and from the public code that it follows."""

from ...report.page import Deviation

DEVIATIONS = (
    Deviation("experiment", "I", "the paper names neither network nor data: here ConvPool-CNN-C on CIFAR-10."),
    Deviation(
        "network",
        "S",
        "it and its training are those of the public code of Salimans and Kingma (2016): nine convolutions with leaky "
        "ReLU (0.1), 2 x 2 max pooling, Adam, a constant, then falling learning rate, 200 epochs.",
    ),
    Deviation(
        "padding",
        "S",
        "one row of zeros around the first six convolutions' inputs, none after that. Zero is mid-grey in an image.",
    ),
    Deviation(
        "layer norm",
        "I",
        "over channels and positions it has a gain and a bias for each unit, as in the paper, and so more parameters "
        "than a norm that has them for each channel.",
        {"norm": ["layer"]},
    ),
    Deviation(
        "layer norm, gain a channel",
        "I",
        "over channels and positions it has a gain and a bias for each channel; in the paper for each unit.",
        {"norm": ["layer-shared"]},
    ),
    Deviation(
        "last layer",
        "I",
        "the norms are at the nine convolutions; the linear layer has none. Salimans and Kingma normalise it too.",
    ),
    Deviation(
        "initial weights",
        "I",
        "N(0, 2 / (1.01 fan-in)), biases at 0, alike for every norm. These are He's weights, made for networks without "
        "a norm: they help the baseline most. Salimans and Kingma set scales and biases from the first batch.",
    ),
    Deviation("pixels", "I", "scaled to -1..1. Salimans and Kingma whiten the images (ZCA)."),
    Deviation("Adam", "I", "its first coefficient stays 0.9; Salimans and Kingma lower it to 0.5 in the second half."),
    Deviation("group norm", "I", "8 groups of channels.", {"norm": ["group"]}),
    Deviation(
        "batch norm's evaluation",
        "I",
        "with running averages of momentum 0.1 over the training batches.",
        {"norm": ["batch"]},
    ),
    Deviation("validation", "I", "{held_out} training images are held out to choose the learning rate."),
    Deviation("data", "stand-in", "the data files are not known to be the publisher's (no matching SHA-256)."),
)

APART = ("held_out", "evaluate_cases")
"""The options that have a deviation of their own, or change no network."""
