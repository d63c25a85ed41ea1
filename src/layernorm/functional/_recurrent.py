"""`rnn`, `lstm`, `gru`: one layer in one direction over a sequence; arguments checked, engine chosen, gradient bound"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends, reference
from ..formula import GATES, PLAIN, Formula, Recurrence, resolve, unknown
from ..reference import Moments as Moments
from ..reference import Statistics as Statistics
from ._bind import Op, autocast_type, gradients_of_equations, transforming, wants_gradient

NORMS = ("layer", "rms", "batch", "weight", None)


def describe(
    network: str,
    norm: str | None,
    formula: str | Formula,
    eps: float | None,
    bias: bool,
    projected: bool = False,
    nonlinearity: str = "tanh",
) -> Recurrence:
    """The `Recurrence` that a constructor's arguments mean.

    Raises:
        ValueError, TypeError: an argument has no meaning for this network; it is named.
    """
    if norm not in NORMS:
        names = [name for name in NORMS if name is not None]
        raise ValueError(unknown("norm", norm, names).replace(str(names), f"{names} or None"))
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(unknown("nonlinearity", nonlinearity, ["tanh", "relu"]))
    if norm in (None, "weight"):  # weight norm is how the weights are made, the equations are torch's
        where, kind = PLAIN, "layer"
    else:
        where, kind = resolve(formula, network, eps), norm  # type: ignore[arg-type]
    return Recurrence(network, where, kind, bool(bias), projected, nonlinearity)  # type: ignore[arg-type]


def run(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    recurrence: str,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """One layer, one direction: (output (T, B, P), final state), parameters in the order of ``parameter_names``.

    Under autocast, input, state and parameters are cast to its type, as torch does for its own recurrent networks:
    integers and float64 are left as they are.
    """
    input, state, params = cast_by_autocast(input, state, params)
    tensors = [input, *state, *params]
    if lengths is not None:
        tensors.append(lengths)
    if reset is not None:
        tensors.append(reset)
    if transforming():
        equations = Recurrence.decode(recurrence)
        _check(input, state, params, lengths, reset, equations)
        found = reference.recurrent_equations(input, state, params, lengths, reset, equations, reverse)
        return found[0], found[1:]
    save = wants_gradient(tensors)
    backend = backends.choose("recurrent", input, recurrence)
    arguments = (input, state, params, lengths, reset, recurrence, reverse, save, backend)
    output, *final = _RECURRENT(1 + len(state), tensors, save, *arguments)
    return output, final


def run_over_cases(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    equations: Recurrence,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    population: Mapping[str, Moments] | None = None,
    count_padding: bool = False,
) -> tuple[Tensor, list[Tensor], Statistics | None]:
    """`run` under batch norm, by plain equations: also what the batch tells about the population.

    With ``population``, for each gain the mean and variance (T, n) to normalise by, no case depends on another.
    ``count_padding``: whether a row that has ended counts, with the input 0 and its final state.

    Raises:
        ValueError: fewer than two cases to take statistics over.
    """
    input, state, params = cast_by_autocast(input, state, params)
    _check(input, state, params, lengths, reset, equations)
    _check_lengths(lengths, input.shape[0])
    if population is None and input.shape[0]:
        expected = "expected two training cases or more under batch norm when training"
        counted = None if count_padding or lengths is None else (lengths > 0).sum()
        if counted is not None and torch.compiler.is_compiling():
            torch._assert_async(counted >= 2, expected)
        elif (cases := input.shape[1] if counted is None else int(counted)) < 2:
            raise ValueError(f"{expected}, got {cases}")
    arguments = (lengths, reset, equations, reverse, population, count_padding)
    (output, *final), statistics = reference.recurrent_over_cases(input, state, params, *arguments)
    return output, final, statistics


def cast_by_autocast(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """In the type that autocast asks for, but for integers and float64, which torch leaves as they are, too."""
    dtype = autocast_type(input.device.type)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor

    if dtype is None:
        return input, list(state), list(params)
    return cast(input), [cast(s) for s in state], [cast(p) for p in params]


def _public(
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
    bias = any("bias" in name for name in parameters)
    encoded, names, H, P = _layout(network, norm, formula, eps, bias, nonlinearity, parameters)
    if input.dim() != 3:
        raise RuntimeError(f"{network.lower()}: expected input of shape [T, B, I], got {list(input.shape)}")
    if state is None:
        state = [input.new_zeros(input.shape[1], size) for size in ((P, H) if network == "LSTM" else (H,))]
    return run(input, state, [parameters[name] for name in names], encoded, lengths, reset, reverse)


def _layout(
    network: str,
    norm: str | None,
    formula: str | Formula,
    eps: float | None,
    bias: bool,
    nonlinearity: str,
    parameters: Mapping[str, Tensor],
) -> tuple[str, tuple[str, ...], int, int]:
    """The encoded `Recurrence`, its parameters' names, H and P; the mapping must have just these names."""
    if norm in ("batch", "weight"):
        raise ValueError(f"{network.lower()}: norm={norm!r} needs a module; use layernorm.{network}")
    projected = network == "LSTM" and "weight_hr" in parameters
    encoded, names = _encode(network, norm, formula, eps, bias, projected, nonlinearity)
    if set(names) != set(parameters):
        missing, extra = sorted(set(names) - set(parameters)), sorted(set(parameters) - set(names))
        raise ValueError(f"{network.lower()}: expected parameters {list(names)}; missing {missing}, unexpected {extra}")
    H = parameters["weight_hh"].shape[0] // GATES[network]
    return encoded, names, H, parameters["weight_hh"].shape[-1]


def _encode(*arguments: Any) -> tuple[str, tuple[str, ...]]:
    network, norm, formula, eps, bias, projected, nonlinearity = arguments
    recurrence = describe(network, norm, formula, eps, bias, projected, nonlinearity)
    return recurrence.encode(), recurrence.parameter_names


# What torch.compiler.assume_constant_result does, without the second that importing torch._dynamo takes: no argument is
# a tensor, so torch.compile calls it once and keeps the result.
_encode._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    r"""A layer-normalised RNN over a sequence, eq. 4.

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
        lengths: ``(B,)`` integers in 0..T: outputs beyond are 0, the final state is the one at the length.
        reset: ``(T, B)`` bool: true cuts the sequence between t-1 and t; the step after the cut starts from zeros.
        reverse: from the last step to the first; with ``lengths`` from each row's own end.

    Returns:
        output ``(T, B, H)``, final ``h`` ``(B, H)``.

    Raises:
        RuntimeError, ValueError, TypeError: an argument's shape, type, device, name or value does not fit.
    """
    state = None if hx is None else [hx]
    output, final = _public("RNN", input, state, parameters, norm, formula, eps, nonlinearity, lengths, reset, reverse)
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
    r"""A layer-normalised LSTM over a sequence, eqs. 20-22.

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
    output, final = _public("LSTM", input, hx, parameters, norm, formula, eps, "tanh", lengths, reset, reverse)
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
    r"""A layer-normalised GRU over a sequence, eqs. 26-28 in torch's convention (z keeps the old state).

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
    output, final = _public("GRU", input, state, parameters, norm, formula, eps, "tanh", lengths, reset, reverse)
    return output, final[0]


def _check(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
) -> None:
    """Everything about shapes, types and devices that an engine relies on."""
    static = type(input) is Tensor and not torch.compiler.is_compiling()  # a symbolic size cannot be looked up
    if static and lengths is None and reset is None and input.dim() == 3 and len(params) > 1 and params[1].dim() == 2:
        shapes, dtype = _shapes(recurrence, input.shape, params[1].shape), input.dtype
        given = (*state, *params)
        if dtype.is_floating_point and input.is_cpu and len(given) == len(shapes):
            for t, shape in zip(given, shapes):  # noqa: B905 - equally long
                if t.shape != shape or t.dtype is not dtype or not t.is_cpu:
                    break
            else:
                return
    _explain(input, state, params, lengths, reset, recurrence)


@functools.lru_cache(1024)
def _shapes(recurrence: Recurrence, input: torch.Size, weight_hh: torch.Size) -> tuple[tuple[int, ...], ...]:
    """What state and parameters must have."""
    H, P = weight_hh[0] // GATES[recurrence.network], weight_hh[1]
    if H < 1 or P < 1 or (P != H and not recurrence.projected):
        return ()  # what nothing fits
    state = tuple((input[1], size) for size in (P, H)[: len(recurrence.state_names)])
    return (*state, *recurrence.parameter_shapes(input[2], H, P).values())


def _explain(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
) -> None:
    """`_check` one by one, with the error for the first that does not fit."""
    op, names = recurrence.network.lower(), recurrence.parameter_names
    if len(params) != len(names) or len(state) != len(recurrence.state_names):
        raise RuntimeError(f"{op}: expected parameters {list(names)} and state {list(recurrence.state_names)}")
    if input.dim() != 3 or params[0].dim() != 2 or params[1].dim() != 2:
        got = [list(t.shape) for t in (input, params[0], params[1])]
        raise RuntimeError(f"{op}: expected input [T, B, I], weight_ih and weight_hh with 2 dimensions, got {got}")
    T, B, I = input.shape  # noqa: E741
    H, P = params[1].shape[0] // GATES[recurrence.network], params[1].shape[1]
    if H < 1 or P < 1:
        raise RuntimeError(f"{op}: expected a hidden size of at least 1, got weight_hh {list(params[1].shape)}")
    if not recurrence.projected:
        P = H
    expected: dict[str, tuple[int, ...]] = {
        f"initial {name}": (B, size) for name, size in zip(recurrence.state_names, (P, H), strict=False)
    }
    expected |= recurrence.parameter_shapes(I, H, P)
    given = dict(zip(expected, (*state, *params), strict=True))
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    for name, tensor in given.items():
        if tuple(tensor.shape) != expected[name]:
            raise RuntimeError(f"{op}: expected {name} of shape {list(expected[name])}, got {list(tensor.shape)}")
        if tensor.dtype != input.dtype:
            raise RuntimeError(f"{op}: expected {name} of type {input.dtype}, as input is, got {tensor.dtype}")
    masks = {"lengths": (lengths, (B,), False), "reset": (reset, (T, B), True)}
    for name, (mask, shape, is_bool) in masks.items():
        if mask is None:
            continue
        if tuple(mask.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {list(shape)}, got {list(mask.shape)}")
        wrong = mask.dtype.is_floating_point or mask.dtype.is_complex or (mask.dtype == torch.bool) != is_bool
        if wrong:
            raise RuntimeError(f"{op}: expected {name} of {'bool' if is_bool else 'an integer type'}, got {mask.dtype}")
        given[name] = mask
    for name, tensor in given.items():
        if tensor.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {tensor.device}")


def _check_lengths(lengths: Tensor | None, T: int) -> None:
    if lengths is None:
        return
    wide = lengths.to(torch.int64)  # a T beyond the type's range would be compared as another number
    fits = ((wide >= 0) & (wide <= T)).all()
    if torch.compiler.is_compiling():  # a graph cannot ask for a value, but can refuse one when it runs
        torch._assert_async(fits, "lengths must lie in 0..T, the time steps of the input")
    elif not bool(fits):
        raise RuntimeError(f"lengths must lie in 0..{T}, the time steps of the input, got {lengths.tolist()}")


def _kernel(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: str,
    reverse: bool,
    save: bool,
    backend: str,
) -> list[Tensor]:
    equations = Recurrence.decode(recurrence)
    _check(input, state, params, lengths, reset, equations)
    _check_lengths(lengths, input.shape[0])
    return backends.engine(backend).recurrent_forward(input, state, params, lengths, reset, equations, reverse, save)


def _fake(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: str,
    reverse: bool,
    save: bool,
    backend: str,
) -> list[Tensor]:
    equations = Recurrence.decode(recurrence)
    _check(input, state, params, lengths, reset, equations)
    output = input.new_empty(*input.shape[:2], params[1].shape[1])
    final = [s.new_empty(s.shape) for s in state]
    saved = backends.engine(backend).recurrent_saved(input, state, params, equations) if save else []
    return [output, *final, *saved]


def _backward_kernel(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    saved: list[Tensor],
    grad_output: Tensor | None,
    grad_state: list[Tensor | None],
    recurrence: str,
    reverse: bool,
    backend: str,
) -> list[Tensor]:
    equations, engine = Recurrence.decode(recurrence), backends.engine(backend)
    _check(input, state, params, lengths, reset, equations)
    _check_lengths(lengths, input.shape[0])
    T, B, _ = input.shape
    expected = engine.recurrent_saved(input, state, params, equations)
    alike = [("saved", tuple(t.shape), t.dtype) for t in expected]
    alike += [("grad_output", (T, B, params[1].shape[1]), input.dtype)]
    alike += [(f"grad of the final {n}", tuple(s.shape), s.dtype) for n, s in zip("hc", state, strict=False)]
    given = [*saved, grad_output, *grad_state]
    if len(given) != len(alike):
        raise RuntimeError(f"{equations.network.lower()}: expected {len(alike)} tensors after reset, got {len(given)}")
    for (name, shape, dtype), tensor in zip(alike, given, strict=True):
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != input.device:
            raise RuntimeError(
                f"{equations.network.lower()}: expected {name} of shape {list(shape)}, {dtype} on {input.device}, "
                f"got {list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
            )
    tensors = (input, state, params, lengths, reset, saved, grad_output, grad_state)
    return engine.recurrent_backward(*tensors, equations, reverse)


def _unchecked_backward(*args: Any) -> list[Tensor]:
    input, state, params, lengths, reset, *rest, recurrence, reverse, backend = args
    equations = Recurrence.decode(recurrence)
    _check(input, state, params, lengths, reset, equations)  # hooks on saved tensors can put others in their place
    engine = backends.engine(backend)
    return engine.recurrent_backward(input, state, params, lengths, reset, *rest, equations, reverse)


def _backward_fake(input: Tensor, state: list[Tensor], params: list[Tensor], *rest: Any) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (input, *state, *params)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    input, state, params, lengths, reset, ctx.recurrence, ctx.reverse, _, ctx.backend = inputs
    ctx.states, ctx.params = len(state), len(params)
    ctx.save_for_backward(lengths, reset, input, *state, *params, *output[1 + len(state) :])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    lengths, reset, *tensors = ctx.saved_tensors
    n = 1 + ctx.states
    inputs, saved = tensors[: n + ctx.params], tensors[n + ctx.params :]
    recurrence = Recurrence.decode(ctx.recurrence)

    def equations(*tensors: Tensor) -> list[Tensor]:
        x, state, params = tensors[0], list(tensors[1:n]), list(tensors[n:])
        return reference.recurrent_equations(x, state, params, lengths, reset, recurrence, ctx.reverse)

    if torch.is_grad_enabled() or transforming() or not saved:  # a graph traced without gradients saves nothing
        found = gradients_of_equations(equations, inputs, grads[:n])
    else:
        arguments = (lengths, reset, saved, grads[0], grads[1:n], ctx.recurrence, ctx.reverse, ctx.backend)
        split = (inputs[0], inputs[1:n], inputs[n:])
        found = list(_RECURRENT_BACKWARD(len(inputs), tensors, False, *split, *arguments))
    return found[0], list(found[1:n]), list(found[n:]), None, None, None, None, None, None


_RECURRENT = Op(
    "recurrent",
    "(Tensor input, Tensor[] state, Tensor[] params, Tensor? lengths, Tensor? reset, str recurrence, bool reverse,"
    " bool save, str backend)",
    _kernel,
    _fake,
    _setup_context,
    _backward,
)
_RECURRENT_BACKWARD = Op(
    "recurrent_backward",
    "(Tensor input, Tensor[] state, Tensor[] params, Tensor? lengths, Tensor? reset, Tensor[] saved,"
    " Tensor? grad_output, Tensor?[] grad_state, str recurrence, bool reverse, str backend)",
    _backward_kernel,
    _backward_fake,
    unchecked=_unchecked_backward,
)
