"""Where experiment 6.6 departs from the paper."""

from ...report.page import Deviation
from .config import BATCH_NORMS

DEVIATIONS = (
    Deviation("activation", "I", "ReLU in the hidden layers; the paper does not name one."),
    Deviation("step size", "I", "Adam, as in the paper, which does not name its learning rate, {learning_rate}."),
    Deviation("initial weights", "I", "as by He et al. (2015), biases at 0; one seed starts all norms alike."),
    Deviation(
        "batch norm's evaluation",
        "I",
        "with running averages of momentum 0.1 over the training batches, and again with the exact statistics of the "
        "training set.",
        {"norm": BATCH_NORMS},
    ),
    Deviation(
        "batch norm's variance",
        "I",
        "divided by M - 1 up to batch size {unbiased_up_to} as in the paper; above it by M, left open there.",
        {"norm": BATCH_NORMS},
    ),
    Deviation(
        "measure",
        "stand-in",
        "speed is measured by the validation error beside the training NLL, where the paper's Figure 6 shows the test "
        "error.",
    ),
)
MNIST = Deviation("data", "stand-in", "the data files' content is not the original MNIST's (other SHA-256).")
DIGITS = Deviation(
    "data",
    "stand-in",
    "scikit-learn's 1797 digits of 8 x 8 pixels (the last 400 for testing, {held_out} before them held out) in place "
    "of MNIST, and {hidden} hidden units instead of 1000.",
)

APART = ("learning_rate", "batch_size", "unbiased_up_to")
"""The options of which the paper states no value, or several."""
