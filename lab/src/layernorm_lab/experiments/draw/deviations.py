"""Where experiment 6.4 departs from the paper."""

from ...report.page import Deviation

DEVIATIONS = (
    Deviation("sizes", "S", "z of size 100, a 2 x 2 grid to read and 5 x 5 to write are not in the paper."),
    Deviation(
        "initial weights",
        "I",
        "torch's own, or N(0, deviation^2) where a deviation is given, with biases of 0; or those of the authors' "
        "cell. States and the canvas at 0.",
    ),
    Deviation("clipping", "I", "the whole gradient is cut to norm {clip}; the paper states no clipping."),
    Deviation(
        "filterbanks",
        "I",
        "their rows are normalised exactly (as a softmax), also where a grid lies outside the image; the original adds "
        "a small constant to the denominator.",
    ),
    Deviation("evaluation", "I", "one draw of z an image, the same in every evaluation and for every norm of a seed."),
    Deviation(
        "measure",
        "stand-in",
        "speed is measured by the bound on the validation images, where the paper's Figure 4 shows that on the test "
        "images.",
    ),
    Deviation("selection", "I", "no model is selected."),
    Deviation("last batch", "I", "that of an epoch is smaller: 391 updates instead of 390."),
    Deviation(
        "data",
        "stand-in",
        "the data files' content is not that of Larochelle and Murray's binarised MNIST (other SHA-256).",
    ),
    Deviation("RMS norm", "I", "not in the paper: the cell is divided by its root mean square.", {"norm": ["rms"]}),
    Deviation("weight norm", "I", "not in the paper's experiment: only of the LSTMs' weights.", {"norm": ["weight"]}),
)

APART = ("initial", "deviation")
"""The options of which the paper states no value."""
