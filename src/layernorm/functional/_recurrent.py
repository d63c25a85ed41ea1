"""`rnn`, `lstm`, `gru`: one layer in one direction over a sequence, by names as a user gives them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_fp32_precision_getter

from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.checks import check_dense, unwrapped
from ..equations.schedule import lines_of, unpacked
from ..formula import CACHED, GATES, PLAIN, QUANTIZED, Formula, Recurrence, resolve, unknown
from ._bind import autocast_type, constant_in_graph, is_eager, new_tuple
from ._recurrent_op import RECURRENT, schema_changes, tensors_between

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


def recurrent(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    recurrence: str,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    changes: StateChanges = NO_CHANGES,
    batch_sizes: Tensor | None = None,
    population: Sequence[Tensor] = (),
    count_padding: bool = False,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Runs one layer in one direction: (output, final state, moments that batch norm has found), parameters in the
    order of ``parameter_names``.

    The arguments are those of `RecurrentArguments`. Here ``population`` may be of any floating type. In a packed call
    with ``count_padding`` rows that have ended count as in a padded one.

    Under autocast it computes in the type that torch's cell of the same name has (`type_under_autocast`). Integers and
    float64 are left as they are. Products of float32 are made as torch's switches say at this call, in its backward as
    well, and under autocast to bfloat16 of numbers that are rounded to it.
    """
    if count_padding and batch_sizes is not None:  # rows that have ended take steps, too
        times, rows = (index.to(input.device) for index in lines_of(batch_sizes, len(input)))
        equations = Recurrence.decode(recurrence)
        a = unpacked(RecurrentArguments(input, state, params, None, reset, equations, reverse, changes, batch_sizes))
        masks = a.lengths, a.reset, reverse, a.changes, None, population, True
        output, final, moments = recurrent(a.input, state, params, recurrence, *masks)
        return output[times, rows], final, moments
    autocast = autocast_type(input)
    if autocast is not None:
        dtype = type_under_autocast(_network(recurrence), autocast, state)
        input, state, params, changes = cast_by_autocast(input, state, params, changes, dtype)
    if input.dtype is torch.float32:
        recurrence = with_products(recurrence, autocast)
    tensors = [input, *state, *params]
    if lengths is not None:
        tensors.append(lengths)
    if reset is not None:
        tensors.append(reset)
    if changes is not NO_CHANGES:
        tensors += tensors_between(changes)
    if batch_sizes is not None:
        tensors.append(batch_sizes)
    if population:
        compute_type = torch.promote_types(input.dtype, torch.float32)
        population = [moment.to(compute_type) for moment in population]
        tensors += population
    if is_eager(tensors):
        equations = Recurrence.decode(recurrence)
        a = new_tuple(
            RecurrentArguments,
            (input, state, params, lengths, reset, equations, reverse, changes, batch_sizes, population, count_padding),
        )
        output, *results = RECURRENT(tensors, (a,), equations)
    else:
        masks = *schema_changes(changes), batch_sizes, population
        output, *results = RECURRENT.dispatch(
            (input, state, params, lengths, reset, *masks, recurrence, reverse, count_padding)
        )
    final, moments = results[: len(state)], results[len(state) :]
    return *((output, final) if autocast is None else cast_projected(output, final, autocast)), moments


@constant_in_graph
def with_products(recurrence: str, autocast: torch.dtype | None) -> str:
    """Returns the recurrence with bfloat16 products, if autocast asks for that type or torch's switches allow them:
    those of its recurrent networks (``torch.backends.mkldnn.rnn.fp32_precision``) or, where these say nothing, those of
    matrix products (``torch.set_float32_matmul_precision``)."""
    if autocast is torch.bfloat16:
        return _with_bfloat16_products(recurrence)
    precision = _get_fp32_precision_getter("mkldnn", "rnn")
    if precision == "none":
        precision = _get_fp32_precision_getter("mkldnn", "matmul")
    return _with_bfloat16_products(recurrence) if precision == "bf16" else recurrence


@functools.lru_cache(CACHED)
def _with_bfloat16_products(recurrence: str) -> str:
    return replace(Recurrence.decode(recurrence), bfloat16_products=True).encode()


def as_cuts(reset: Any, shape: Sequence[int], who: str, order: str = "") -> Tensor:
    """Returns a ``reset`` mask as bool. ``order`` is added to the expected shape in the error.

    Raises:
        TypeError: it is no tensor.
        RuntimeError: it has another shape, or holds numbers other than 0 and 1. A compiled graph raises it when run.
    """
    if not isinstance(reset, Tensor):
        raise TypeError(f"{who}: expected reset to be a Tensor, got {type(reset).__name__}")
    check_dense(who, "reset", reset)
    if tuple(reset.shape) != tuple(shape):
        raise RuntimeError(f"{who}: expected reset of shape {list(shape)}{order}, got {list(reset.shape)}")
    if reset.dtype == torch.bool:
        return reset
    compiling = torch.compiler.is_compiling()
    mask = reset if compiling else unwrapped(reset)
    fits = ((mask == 0) | (mask == 1)).all()
    expected = f"{who}: expected reset to be bool, or to hold only 0 and 1"
    if compiling:  # a graph cannot ask for a value, but can refuse one when it runs
        torch._assert_async(fits, expected)
    elif not mask.is_meta and not bool(fits):
        raise RuntimeError(f"{expected}, got {mask.dtype} with {mask[(mask != 0) & (mask != 1)][0].item()}")
    return reset != 0


@constant_in_graph
def _network(recurrence: str) -> str:
    return Recurrence.decode(recurrence).network


def type_under_autocast(network: str, autocast: torch.dtype, state: Sequence[Tensor]) -> torch.dtype:
    """Returns the type that a call computes in, and returns its state in, under autocast to a type.

    It is autocast's. On a CPU torch's LSTM and GRU cells add to the state in the type that it has, so there it is the
    wider one of the two; an LSTM's is that of c.
    """
    if network == "RNN" or not state[-1].is_cpu:
        return autocast
    wider = torch.promote_types(autocast, state[-1].dtype)
    return autocast if wider is torch.float64 else wider  # which no product with autocast's type takes


@constant_in_graph
def is_onednns(dtype: torch.dtype) -> bool:
    """Says whether oneDNN computes torch's padded LSTM without projections on this processor, of inputs of a type."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def cast_by_autocast(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], changes: StateChanges, dtype: torch.dtype
) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor], StateChanges]:
    """Casts to the type of a call under autocast, but for integers and float64, which torch leaves as they are, too,
    and the scales of int8 weights."""
    (input,) = cast_tensors([input], dtype)
    if changes.restart:
        changes = changes._replace(restart=cast_tensors(changes.restart, dtype))
    scales = params[len(params) - len(QUANTIZED) :] if params[0].dtype is torch.int8 else ()
    params = [*cast_tensors(params[: len(params) - len(scales)], dtype), *scales]
    return input, cast_tensors(state, dtype), params, changes


def cast_projected(output: Tensor, final: Sequence[Tensor], autocast: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Casts the h of a projected LSTM to the type of autocast, as it is a product; other networks' results stay."""
    if len(final) == 1 or final[0].shape[1] == final[1].shape[1]:
        return output, [*final]
    output, h = cast_tensors([output, final[0]], autocast)
    return output, [h, *final[1:]]


def cast_tensors(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Casts to the type of autocast what it casts."""
    return [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


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
    encoded, names, H, P = _read_names(network, norm, formula, eps, bias, nonlinearity, parameters)
    if input.dim() != 3:
        raise RuntimeError(f"{op}: expected input of shape [T, B, I], got {list(input.shape)}")
    if state is None:
        state = [input.new_zeros(input.shape[1], size) for size in ((P, H) if network == "LSTM" else (H,))]
    if reset is not None:
        reset = as_cuts(reset, input.shape[:2], op)
    return recurrent(input, state, [parameters[name] for name in names], encoded, lengths, reset, reverse)[:2]


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
) -> tuple[str, tuple[str, ...], int, int]:
    """Returns the encoded `Recurrence`, its parameters' names, H and P; the mapping must have just these names."""
    if norm in ("batch", "weight"):
        raise ValueError(f"{network.lower()}: norm={norm!r} needs a module; use layernorm.{network}")
    projected = network == "LSTM" and "weight_hr" in parameters
    encoded, names = _encode(network, norm, formula, eps, bias, projected, nonlinearity)
    if set(names) != set(parameters):
        missing, extra = sorted(set(names) - set(parameters)), sorted(set(parameters) - set(names))
        raise ValueError(f"{network.lower()}: expected parameters {list(names)}; missing {missing}, unexpected {extra}")
    shape = parameters["weight_hh"].shape
    if len(shape) != 2:
        raise RuntimeError(f"{network.lower()}: expected weight_hh with 2 dimensions, got {list(shape)}")
    return encoded, names, shape[0] // GATES[network], shape[1]


@constant_in_graph
def _encode(*arguments: Any) -> tuple[str, tuple[str, ...]]:
    recurrence = describe(*arguments)
    return recurrence.encode(), recurrence.parameter_names


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

    Args:
        input: ``(T, B, I)``.
        hx: the initial ``h``, ``(B, H)``; ``None``: zeros.
        parameters: by the names that the module has without the layer's suffix: ``weight_ih (H, I)``,
            ``weight_hh (H, H)``, ``bias_ih``, ``bias_hh``, ``gain (H)``.
        norm: ``"layer"``, ``"rms"``, or ``None`` for torch's equations.
        formula: where the normalisations sit: a preset's name or a `Formula`.
        eps: overrides the formula's.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        lengths: ``(B,)``, integers from 0 to T. Outputs beyond a length are 0, the final state is the one there.
        reset: ``(T, B)``, bool or 0 and 1. A 1 cuts the sequence between t-1 and t. The step after the cut starts from
            zeros.
        reverse: runs from the last step to the first, with ``lengths`` from each row's own end.

    Returns:
        output ``(T, B, H)``, final ``h`` ``(B, H)``.

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

    Args:
        input: ``(T, B, I)``.
        hx: the initial ``(h (B, P), c (B, H))``; ``None``: zeros.
        parameters: ``weight_ih (4H, I)``, ``weight_hh (4H, P)``, ``bias_ih``, ``bias_hh``, ``gain_ih``,
            ``gain_hh (4H)``, ``gain_c``, ``bias_c (H)``, with projections ``weight_hr (P, H)``.
        norm, formula, eps, lengths, reset, reverse: as in `rnn`.

    Returns:
        output ``(T, B, P)``, ``(h (B, P), c (B, H))``.

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
