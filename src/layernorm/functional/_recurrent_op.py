"""The op behind `rnn`, `lstm` and `gru`: the checks of its arguments, its kernel and its gradient."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends
from ..engines import reference
from ..engines.protocol import RecurrentArguments, RecurrentKind, Run
from ..formula import GATES, Recurrence
from ._bind import Arguments, Op, Part, gradients_of_equations, of_all_cases, transforming


def check(a: RecurrentArguments) -> None:
    """Checks everything about shapes, types and devices that an engine relies on.

    Raises:
        RuntimeError: something does not fit. The message names it, with what was given and what is expected.
    """
    input, state, params = a.input, a.state, a.params
    static = type(input) is Tensor and not torch.compiler.is_compiling()  # symbolic sizes are no keys for `_expected`
    plain = static and a.lengths is None and a.reset is None
    if plain and input.dim() == 3 and len(params) > 1 and params[1].dim() == 2:
        dtype = input.dtype
        if dtype.is_floating_point and input.is_cpu:
            kinds = list(map(_KIND, (*state, *params)))
            if kinds == _expected(a.recurrence, input.shape, params[1].shape, dtype):
                return
    _explain(a)


_KIND = operator.attrgetter("shape", "dtype", "is_cpu")


@functools.lru_cache(1024)
def _expected(
    recurrence: Recurrence, input: torch.Size, weight_hh: torch.Size, dtype: torch.dtype
) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
    """What `_KIND` must be of state and parameters. Empty, which fits no call, where the sizes are wrong."""
    H, P = weight_hh[0] // GATES[recurrence.network], weight_hh[1]
    if H < 1 or P < 1 or (P != H and not recurrence.projected):
        return []
    state = tuple((input[1], size) for size in (P, H)[: len(recurrence.state_names)])
    shapes = (*state, *recurrence.parameter_shapes(input[2], H, P).values())
    return [(shape, dtype, True) for shape in shapes]


def _explain(a: RecurrentArguments) -> None:
    """`check`, one tensor after the other, with the error for the first that does not fit."""
    input, state, params, recurrence = a.input, a.state, a.params, a.recurrence
    op, names = recurrence.network.lower(), recurrence.parameter_names
    if len(params) != len(names) or len(state) != len(recurrence.state_names):
        expected = f"parameters {list(names)} and state {list(recurrence.state_names)}"
        got = f"{len(params)} parameters and {len(state)} state tensors"
        raise RuntimeError(f"{op}: expected {expected}, got {got}")
    if input.dim() != 3 or params[0].dim() != 2 or params[1].dim() != 2:
        shapes = [list(t.shape) for t in (input, params[0], params[1])]
        raise RuntimeError(f"{op}: expected input [T, B, I], weight_ih and weight_hh with 2 dimensions, got {shapes}")
    T, B, I, H, P = a.sizes  # noqa: E741
    if H < 1 or P < 1:
        raise RuntimeError(f"{op}: expected a hidden size of at least 1, got weight_hh {list(params[1].shape)}")
    if not recurrence.projected:
        P = H
    expected_shapes: dict[str, tuple[int, ...]] = {
        f"initial {name}": (B, size) for name, size in zip(recurrence.state_names, (P, H), strict=False)
    }
    expected_shapes |= recurrence.parameter_shapes(I, H, P)
    tensors = dict(zip(expected_shapes, (*state, *params), strict=True))
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    for name, tensor in tensors.items():
        shape = expected_shapes[name]
        if tuple(tensor.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {list(shape)}, got {list(tensor.shape)}")
        if tensor.dtype != input.dtype:
            raise RuntimeError(f"{op}: expected {name} of type {input.dtype}, as input is, got {tensor.dtype}")
    masks = {"lengths": (a.lengths, (B,), False), "reset": (a.reset, (T, B), True)}
    for name, (mask, shape, is_bool) in masks.items():
        if mask is None:
            continue
        if tuple(mask.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {list(shape)}, got {list(mask.shape)}")
        wrong = mask.dtype.is_floating_point or mask.dtype.is_complex or (mask.dtype == torch.bool) != is_bool
        if wrong:
            raise RuntimeError(f"{op}: expected {name} of {'bool' if is_bool else 'an integer type'}, got {mask.dtype}")
        tensors[name] = mask
    for name, tensor in tensors.items():
        if tensor.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {tensor.device}")


def check_lengths(lengths: Tensor | None, T: int) -> None:
    """Checks that lengths lie in 0..T.

    Raises:
        RuntimeError: one does not. In a compiled graph the error comes when the graph runs.
    """
    if lengths is None:
        return
    compiling = torch.compiler.is_compiling()
    wide = (lengths if compiling else of_all_cases(lengths)).to(torch.int64)  # T may be too large for a narrow type
    fits = ((wide >= 0) & (wide <= T)).all()
    if compiling:  # a compiled graph cannot branch on a value, but can raise an error when it runs
        torch._assert_async(fits, "lengths must lie in 0..T, the time steps of the input")
    elif not bool(fits):
        raise RuntimeError(f"lengths must lie in 0..{T}, the time steps of the input, got {wide.tolist()}")


def _arguments(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: str,
    reverse: bool,
) -> RecurrentArguments:
    """`RecurrentArguments` from the arguments of the op's schema."""
    return RecurrentArguments(input, state, params, lengths, reset, Recurrence.decode(recurrence), reverse)


def _equations(arguments: Arguments) -> list[Tensor]:
    a = _arguments(*arguments)
    check(a)
    check_lengths(a.lengths, a.input.shape[0])
    return reference.recurrent_equations(a)


def _kernel(save: bool, backend: str, arguments: Arguments) -> list[Tensor]:
    a = _arguments(*arguments)
    check(a)
    check_lengths(a.lengths, a.input.shape[0])
    return backends.engine(backend).recurrent_forward(a, save)


def _fake(backend: str | None, arguments: Arguments) -> list[Tensor]:
    a = _arguments(*arguments)
    check(a)
    output = a.input.new_empty(*a.input.shape[:2], a.params[1].shape[1])
    final = [s.new_empty(s.shape) for s in a.state]
    return [output, *final, *(backends.engine(backend).recurrent_saved(a) if backend else [])]


def _backward_kernel(backend: str, given: Arguments) -> list[Tensor]:
    *arguments, saved, grad_output, grad_state = given
    a, engine = _arguments(*arguments), backends.engine(backend)
    check(a)
    check_lengths(a.lengths, a.input.shape[0])
    expected_saved = engine.recurrent_saved(a)
    counts, expected = (len(saved), len(grad_state)), (len(expected_saved), len(a.state))
    if counts != expected:
        op = a.recurrence.network.lower()
        raise RuntimeError(
            f"{op}: expected {expected[0]} saved tensors and {expected[1]} gradients of the final state, "
            f"got {counts[0]} and {counts[1]}"
        )
    for tensor, like in zip(saved, expected_saved, strict=True):
        _check_alike(a, "saved", tensor, like.shape, like.dtype)
    _check_gradients(a, grad_output, grad_state)
    return engine.recurrent_backward(a, saved, grad_output, grad_state)


def _check_gradients(a: RecurrentArguments, grad_output: Tensor | None, grad_state: list[Tensor | None]) -> None:
    """Checks that each gradient has the shape, type and device of the result that it belongs to.

    Raises:
        RuntimeError: one has not. The message names it.
    """
    T, B, _, _, P = a.sizes
    _check_alike(a, "grad_output", grad_output, (T, B, P), a.input.dtype)
    for name, grad, state in zip("hc", grad_state, a.state, strict=False):
        _check_alike(a, f"grad of the final {name}", grad, state.shape, state.dtype)


def _check_alike(
    a: RecurrentArguments, name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if tensor is None or (tensor.shape == shape and tensor.dtype is dtype and tensor.device == a.device):
        return
    raise RuntimeError(
        f"{a.recurrence.network.lower()}: expected {name} of shape {list(shape)}, {dtype} on {a.device}, "
        f"got {list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
    )


def _unchecked_backward(backend: str, given: Arguments) -> list[Tensor]:
    *arguments, saved, grad_output, grad_state = given
    a = _arguments(*arguments)
    check(a)  # hooks on saved tensors can replace them
    _check_gradients(a, grad_output, grad_state)
    return backends.engine(backend).recurrent_backward(a, saved, grad_output, grad_state)


def _backward_fake(arguments: Arguments) -> list[Tensor]:
    input, state, params, *_ = arguments
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (input, *state, *params)]


def _choose(arguments: Arguments, backend: str | None) -> str:
    input, *_, recurrence, _ = arguments
    return backends.choose("recurrent", input, recurrence, backend)


def _plan(save: bool, arguments: Arguments) -> tuple[str, Run | None]:
    input, state, params, lengths, reset, recurrence, reverse = arguments
    if lengths is not None or reset is not None or len(params) < 2:
        return _choose(arguments, None), None
    return _planned(
        backends.asked_for(), "cpu" if input.is_cpu else input.device.type, save,
        *_kind(input, state, params, recurrence, reverse),
    )  # fmt: skip


def _kind(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], recurrence: str, reverse: bool
) -> tuple[Any, ...]:
    """The fields of `RecurrentKind`."""
    return (
        input.dtype, input.shape, input.stride(), params[1].shape, len(state), len(params), recurrence, reverse,
        torch.get_num_threads(),
    )  # fmt: skip


@functools.lru_cache(4096)
def _planned(asked_for: str | None, device: str, save: bool, *kind: Any) -> tuple[str, Run | None]:
    """The engine for calls of this kind, and its plan for them; ``kind``: `RecurrentKind`."""
    of_calls = RecurrentKind(*kind)
    backend = backends.preferred("recurrent", device, of_calls.dtype, asked_for, of_calls.recurrence)
    plan = getattr(backends.engine(backend), "recurrent_forward_plan", None)
    return backend, plan and plan(of_calls, save)


def _backward_plan(backend: str, arguments: Arguments) -> Run | None:
    input, state, params, lengths, reset, recurrence, reverse, _, grad_output, grad_state = arguments
    if lengths is not None or reset is not None:
        return None
    arriving = (grad_output is not None, *[g is not None for g in grad_state])
    return _planned_backward(backend, arriving, *_kind(input, state, params, recurrence, reverse))


@functools.lru_cache(4096)
def _planned_backward(backend: str, arriving: tuple[bool, ...], *kind: Any) -> Run | None:
    """The engine's plan for calls of this kind, `RecurrentKind`."""
    plan = getattr(backends.engine(backend), "recurrent_backward_plan", None)
    return plan and plan(RecurrentKind(*kind), arriving)


def _save(ctx: Any, arguments: Arguments, found: list[Tensor]) -> list[Tensor]:
    input, state, params, lengths, reset, ctx.recurrence, ctx.reverse = arguments
    ctx.states, ctx.params = len(state), len(params)
    ctx.save_for_backward(lengths, reset, input, *state, *params, *found[1 + len(state) :])
    return found[: 1 + len(state)]


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    lengths, reset, *tensors = ctx.saved_tensors
    n = 1 + ctx.states
    inputs, saved = tensors[: n + ctx.params], tensors[n + ctx.params :]
    recurrence = Recurrence.decode(ctx.recurrence)

    def equations(*tensors: Tensor) -> list[Tensor]:
        split = (tensors[0], tensors[1:n], tensors[n:])
        return reference.recurrent_equations(RecurrentArguments(*split, lengths, reset, recurrence, ctx.reverse))

    if torch.is_grad_enabled() or transforming():
        d_inputs: list[Tensor | None] = [*gradients_of_equations(equations, inputs, grads)]
    else:
        arguments = (inputs[0], inputs[1:n], inputs[n:], lengths, reset, ctx.recurrence, ctx.reverse)
        arriving = (grads[0], grads[1:n])
        tensors = [*tensors, *[g for g in grads if g is not None]]
        d_inputs = list(_RECURRENT_BACKWARD(tensors, ctx.backend, (*arguments, saved, *arriving)))
    return d_inputs + [None for mask in (lengths, reset) if mask is not None]


_ARGUMENTS = (
    "Tensor input, Tensor[] state, Tensor[] params, Tensor? lengths, Tensor? reset, str recurrence, bool reverse"
)
RECURRENT = Op(
    "recurrent",
    _ARGUMENTS,
    _choose,
    _plan,
    _kernel,
    _fake,
    _equations,
    _save,
    _backward,
)
_RECURRENT_BACKWARD = Part(
    "recurrent_backward",
    f"{_ARGUMENTS}, Tensor[] saved, Tensor? grad_output, Tensor?[] grad_state",
    _backward_plan,
    _backward_kernel,
    _backward_fake,
    unchecked=_unchecked_backward,
)
