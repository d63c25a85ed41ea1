"""Where experiment 6.5 departs from the paper."""

from ...report.page import Deviation

DEVIATIONS = (
    Deviation("step size", "I", "Adam with a learning rate of {learning_rate}; the paper names only Adam."),
    Deviation("characters", "I", "57: 52 letters, space, . , ' and one for all others, digits among them."),
    Deviation("points", "I", "a line's first ones are used, up to the cut; the first point is given, not predicted."),
    Deviation("layer norm", "I", "as in eqs. 20-22, the cell's too.", {"norm": ["layer"]}),
    Deviation(
        "network",
        "I",
        "no peepholes. Weights and biases start as torch.nn.LSTM's do, those of all norms alike.",
    ),
    Deviation(
        "window",
        "I",
        "it moves 0.05 characters a point at first, and each of its components has weight 0.06 (Graves does not tell "
        "the initial values).",
    ),
    Deviation("NLL", "I", "over all points of the validation lines, times 500: shorter lines count by their points."),
    Deviation(
        "clipping",
        "S",
        "derivatives of a sequence's loss are cut as by Graves, to +-100 at the outputs and +-10 before the LSTMs' "
        "sigmoids and tanhs; a last, smaller batch of an epoch has lower limits, in proportion to its lines.",
        {"clip": ["gates"]},
    ),
    Deviation(
        "cleaning",
        "I",
        "lines are cleaned as by Graves, who tells no numbers: {data_cleaned}.",
        {"lines": ["cleaned"]},
    ),
    Deviation("data", "stand-in", "the lines are not those of the published lists (their content differs)."),
)

APART = ("learning_rate", "evaluate_every")
"""The options of which the paper states no value."""
