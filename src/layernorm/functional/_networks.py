"""`rnn`, `lstm`, `gru`: one layer in one direction over a sequence, with parameters by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..equations.arguments import RecurrentArguments
from ..formula import GATES, PLAIN, Formula, Recurrence, resolve, unknown
from ._bind import constant_in_graph
from ._recurrent import recurrent
from ._resets import as_cuts

NORMS = ("layer", "rms", "batch", "weight", None)


def describe(
    network: str,
    norm: str | None,
    formula: str | Formula,
    eps: float | None,
    bias: bool,
    projected: bool = False,
    nonlinearity: str = "tanh",
    gate_clip: float | None = None,
) -> Recurrence:
    """Returns the `Recurrence` that a constructor's arguments describe.

    Raises:
        ValueError, TypeError: an argument has no meaning for this network. The message names it.
    """
    if norm not in NORMS:
        names = [name for name in NORMS if name is not None]
        raise ValueError(unknown("norm", norm, names).replace(str(names), f"{names} or None"))
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(unknown("nonlinearity", nonlinearity, ["tanh", "relu"]))
    try:
        clip = math.inf if gate_clip is None else float(gate_clip)
    except (TypeError, ValueError):
        clip = math.nan
    if not clip > 0 or isinstance(gate_clip, bool):
        raise ValueError(f"gate_clip must be a number > 0 or None, got {gate_clip!r}")
    if norm in (None, "weight"):  # weight norm is how the weights are made, the equations are torch's
        resolved, normalisation = PLAIN, "layer"
    else:
        resolved, normalisation = resolve(formula, network, eps), norm  # type: ignore[arg-type]
    return Recurrence(network, resolved, normalisation, bool(bias), projected, nonlinearity, clip)  # type: ignore[arg-type]


def _run_op(
    network: str,
    input: Tensor,
    state: Sequence[Tensor] | None,
    parameters: Mapping[str, Tensor],
    norm: str | None,
    formula: str | Formula,
    eps: float | None,
    nonlinearity: str,
    lengths: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, list[Tensor]]:
    op = network.lower()
    _check_types(op, input, state, parameters, lengths)
    bias = any("bias" in name for name in parameters)
    recurrence, params = _read_names(network, norm, formula, eps, bias, nonlinearity, parameters)
    if input.dim() != 3:
        raise RuntimeError(f"{op}: expected input of shape [T, B, I], got {list(input.shape)}")
    if state is None:
        units, P = params[1].shape
        H = units // GATES[network]
        state = [input.new_zeros(input.shape[1], size) for size in ((P, H) if network == "LSTM" else (H,))]
    if reset is not None:
        reset = as_cuts(reset, input.shape[:2], op)
    a = RecurrentArguments(input, state, params, recurrence, lengths=lengths, reset=reset, reverse=reverse)
    return recurrent(a)[:2]


def _check_types(op: str, input: Any, state: Any, parameters: Any, lengths: Any) -> None:
    """Checks that what has to be a Tensor is one.

    Raises:
        TypeError: something is not.
    """
    if op == "lstm" and state is not None and (isinstance(state, Tensor) or len(state) != 2):
        given = type(state).__name__ if isinstance(state, Tensor) else f"{type(state).__name__} of {len(state)}"
        raise TypeError(f"lstm: expected hx to be a tuple (h, c), got {given}")
    if not isinstance(parameters, Mapping):
        raise TypeError(f"{op}: expected parameters to be a mapping from names, got {type(parameters).__name__}")
    tensors = {"input": input, **parameters} | dict(zip(("initial h", "initial c"), state or (), strict=False))
    if lengths is not None:
        tensors["lengths"] = lengths
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: expected {name} to be a Tensor, got {type(tensor).__name__}")


def _read_names(
    network: str,
    norm: str | None,
    formula: str | Formula,
    eps: float | None,
    bias: bool,
    nonlinearity: str,
    parameters: Mapping[str, Tensor],
) -> tuple[Recurrence, list[Tensor]]:
    """Returns the equations and their parameters; the mapping must have just these."""
    if norm in ("batch", "weight"):
        raise ValueError(f"{network.lower()}: norm={norm!r} needs a module; use layernorm.{network}")
    projected = network == "LSTM" and "weight_hr" in parameters
    recurrence, names = _describe(network, norm, formula, eps, bias, projected, nonlinearity)
    if set(names) != set(parameters):
        missing, extra = sorted(set(names) - set(parameters)), sorted(set(parameters) - set(names))
        raise ValueError(f"{network.lower()}: expected parameters {list(names)}; missing {missing}, unexpected {extra}")
    shape = parameters["weight_hh"].shape
    if len(shape) != 2:
        raise RuntimeError(f"{network.lower()}: expected weight_hh with 2 dimensions, got {list(shape)}")
    return recurrence, [parameters[name] for name in names]


@constant_in_graph
def _describe(*arguments: Any) -> tuple[Recurrence, tuple[str, ...]]:
    """Returns also the parameters' names, which torch.compile cannot ask for."""
    recurrence = describe(*arguments)
    return recurrence, recurrence.parameter_names


def rnn(
    input: Tensor,
    hx: Tensor | None,
    parameters: Mapping[str, Tensor],
    *,
    norm: str | None = "layer",
    formula: str | Formula = "paper",
    eps: float | None = None,
    nonlinearity: str = "tanh",
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Runs a layer-normalised RNN over a sequence, eq. 4.

    .. math:: h_t = f(\mathrm{LN}(W_{ih} x_t + W_{hh} h_{t-1};\; gain,\; bias_{ih} + bias_{hh}))

    In the shapes T is the sequence length, B the batch size, I the input size, and H the hidden size.

    Args:
        input: ``(T, B, I)``.
        hx: the initial ``h``, ``(B, H)``; ``None``: zeros.
        parameters: a mapping from the names that the module's parameters have without the layer's suffix:
            ``weight_ih (H, I)``, ``weight_hh (H, H)``, ``bias_ih``, ``bias_hh``, ``gain (H)``.
        norm: ``"layer"``, ``"rms"``, or ``None`` for torch's equations.
        formula: where the normalisations sit: a preset's name or a `Formula`.
        eps: overrides the formula's ``eps``.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        lengths: ``(B,)``, integers from 0 to T. Outputs beyond a length are 0, and the final state is the one at the
            length.
        reset: ``(T, B)``, bool or 0 and 1. A 1 cuts the sequence between t-1 and t. The step after the cut starts from
            zeros.
        reverse: whether to run from the last step to the first, with ``lengths`` from each row's own end.

    Returns:
        The output ``(T, B, H)``, and the final ``h`` ``(B, H)``.

    Raises:
        RuntimeError, ValueError, TypeError: an argument's shape, type, device, name or value does not fit.
    """
    state = None if hx is None else [hx]
    output, final = _run_op("RNN", input, state, parameters, norm, formula, eps, nonlinearity, lengths, reset, reverse)
    return output, final[0]


def lstm(
    input: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    parameters: Mapping[str, Tensor],
    *,
    norm: str | None = "layer",
    formula: str | Formula = "paper",
    eps: float | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    r"""Runs a layer-normalised LSTM over a sequence, eqs. 20-22.

    .. math::
        (i, f, g, o) &= \mathrm{LN}(W_{hh} h_{t-1}; gain_{hh}, bias_{hh})
            + \mathrm{LN}(W_{ih} x_t; gain_{ih}, bias_{ih}) \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g), \qquad
        h_t = \sigma(o) \tanh(\mathrm{LN}(c_t; gain_c, bias_c))

    The letters in the shapes are those of `rnn`. P is the size of the output: H without projections.

    Args:
        input: ``(T, B, I)``.
        hx: the initial ``(h (B, P), c (B, H))``; ``None``: zeros.
        parameters: ``weight_ih (4H, I)``, ``weight_hh (4H, P)``, ``bias_ih``, ``bias_hh``, ``gain_ih``,
            ``gain_hh (4H)``, ``gain_c``, ``bias_c (H)``, with projections ``weight_hr (P, H)``.
        norm, formula, eps, lengths, reset, reverse: as in `rnn`.

    Returns:
        The output ``(T, B, P)``, and the final state ``(h (B, P), c (B, H))``.

    Raises:
        RuntimeError, ValueError, TypeError: an argument's shape, type, device, name or value does not fit.
    """
    output, final = _run_op("LSTM", input, hx, parameters, norm, formula, eps, "tanh", lengths, reset, reverse)
    return output, (final[0], final[1])


def gru(
    input: Tensor,
    hx: Tensor | None,
    parameters: Mapping[str, Tensor],
    *,
    norm: str | None = "layer",
    formula: str | Formula = "paper",
    eps: float | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Runs a layer-normalised GRU over a sequence, eqs. 26-28 in torch's convention (z keeps the old state).

    .. math::
        (r, z) &= \sigma(\mathrm{LN}(W_{rz} x_t) + \mathrm{LN}(U_{rz} h_{t-1})) \\
        n &= \tanh(\mathrm{LN}(W_n x_t) + r\, \mathrm{LN}(U_n h_{t-1})), \qquad h_t = (1 - z) n + z h_{t-1}

    The letters in the shapes are those of `rnn`.

    Args:
        input: ``(T, B, I)``.
        hx: the initial ``h``, ``(B, H)``; ``None``: zeros.
        parameters: ``weight_ih (3H, I)``, ``weight_hh (3H, H)``, ``bias_ih``, ``bias_hh``, ``gain_ih``,
            ``gain_hh (3H)``.
        norm, formula, eps, lengths, reset, reverse: as in `rnn`.

    Returns:
        output ``(T, B, H)``, final ``h`` ``(B, H)``.

    Raises:
        RuntimeError, ValueError, TypeError: an argument's shape, type, device, name or value does not fit.
    """
    state = None if hx is None else [hx]
    output, final = _run_op("GRU", input, state, parameters, norm, formula, eps, "tanh", lengths, reset, reverse)
    return output, final[0]
