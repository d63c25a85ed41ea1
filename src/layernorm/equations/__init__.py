"""The library of equations: every op in plain torch operations, and beside each its backward by hand.

It is the oracle that kernels are compared with, what the engines ``reference`` and ``compiled`` run,
and the derivatives of what has been differentiated once. It runs on every device, for every formula and floating type.
The functions whose names end in ``_equations`` are differentiable to any order.

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length.
"""

from .. import _torch as _torch  # before any name of PyTorch's is used

FORMULA_FIELDS = frozenset(
    {
        "gates", "span", "cell", "bias_inside", "gate_bias", "cell_bias", "eps", "eps_on", "forget_bias", "biases",
        "bias_again",
    }
)  # fmt: skip
"""The fields of `Formula` that the equations know."""
