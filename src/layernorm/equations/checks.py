"""What every engine refuses: arguments that do not fit each other, each with the error that names it.

An engine calls these where it has not looked at the tensors by other means, before it computes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C import _functorch

from ..formula import CACHED, GATES, QUANTIZED, Recurrence
from .arguments import NO_CHANGES, NormArguments, RecurrentArguments

NO_STEPS = "batch norm has moments for each time step of a sequence; it takes no steps one by one"


def check_dense(who: str, name: str, tensor: Tensor) -> None:
    """Checks that a tensor has one place in memory for each element.

    Raises:
        RuntimeError: it is sparse, nested, or in MKL-DNN's order.
    """
    if tensor.is_nested:
        raise RuntimeError(
            f"{who}: expected {name} to be dense, got a nested tensor; call to_padded_tensor(0.0) on it, and give "
            "lengths to a network"
        )
    if tensor.layout is not torch.strided:
        raise RuntimeError(
            f"{who}: expected {name} to be dense, with layout torch.strided, got layout {tensor.layout}; call "
            "to_dense() on it"
        )


def check_norm(a: NormArguments, residual: Tensor | None) -> None:
    """Checks everything about shapes, types and devices of a norm op.

    Raises:
        RuntimeError: something does not fit. The message names it, with what was given and what is expected.
    """
    op, input, shape = f"{a.norm}_norm", a.input, list(a.normalized_shape)
    for name, tensor in (("input", input), ("residual", residual), ("weight", a.weight), ("bias", a.bias)):
        if tensor is not None:
            check_dense(op, name, tensor)
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    if not shape or list(input.shape[input.dim() - len(shape) :]) != shape:
        expected = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"{op}: given normalized_shape={shape}, expected input of shape [{expected}], got {list(input.shape)}"
        )
    if residual is not None:
        for what in ("shape", "dtype", "device"):
            mine, given = getattr(input, what), getattr(residual, what)
            if mine != given:
                mine, given = (list(mine), list(given)) if what == "shape" else (mine, given)
                raise RuntimeError(f"{op}: expected residual of {what} {mine}, as input has, got {given}")
    for name, p in (("weight", a.weight), ("bias", a.bias)):
        if p is None:
            continue
        if list(p.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {shape}, got {list(p.shape)}")
        if not p.dtype.is_floating_point:
            raise RuntimeError(f"{op}: expected {name} of a floating-point type, got {p.dtype}")
        if p.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {p.device}")


def check_norm_gradients(
    a: NormArguments, saved: Sequence[Tensor], expected: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> None:
    """Checks what else the backward of a norm op is given; hooks on saved tensors can put others in their place.

    ``expected``: the engine's `normalize_saved`.

    Raises:
        RuntimeError: something does not fit, as in `check_norm`.
    """
    if [(t.shape, t.dtype, t.device) for t in saved] != [(t.shape, t.dtype, t.device) for t in expected]:
        wanted, got = (", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors) for tensors in (expected, saved))
        raise RuntimeError(f"{a.norm}_norm: expected saved statistics {wanted}, got {got}")
    shape, dtype, device = a.input.shape, a.input.dtype, a.input.device
    for g in (grad, grad_total):
        if g is not None and (g.shape != shape or g.dtype is not dtype or g.device != device):
            raise RuntimeError(
                f"{a.norm}_norm: expected a gradient like input, {dtype} {list(shape)} on {device}, "
                f"got {g.dtype} {list(g.shape)} on {g.device}"
            )


def check_recurrent(a: RecurrentArguments) -> None:
    """Checks everything about the arguments of a recurrent op: `check_tensors`, and the values of lengths.

    Raises:
        RuntimeError: something does not fit. Of lengths a compiled graph raises it when it runs.
    """
    check_tensors(a)
    if a.finds_moments:
        _check_row_count(a)
    if a.batch_sizes is not None and not torch.compiler.is_compiling():
        _check_batch_sizes(a, a.batch_sizes)
    if a.lengths is not None:
        check_lengths(a.lengths, a.input.shape[0], torch.compiler.is_compiling())


def _check_row_count(a: RecurrentArguments) -> None:
    """Checks that there are moments of the batch: two rows or more that take a step.

    Raises:
        ValueError: there are fewer. Of lengths a compiled graph raises a RuntimeError when it runs.
    """
    T, B = a.sizes[:2]
    if not T or not a.recurrence.gain_names:
        return
    expected = "expected two training cases or more under batch norm when training"
    if a.count_padding or a.lengths is None:
        if B < 2:
            raise ValueError(f"{expected}, got {B}")
        return
    counted = (a.lengths > 0).sum()
    check_values(counted >= 2, expected, lambda: int(counted), ValueError)


def check_lengths(lengths: Tensor, T: int, in_graph: bool) -> None:
    """Checks the values of lengths, for `check_recurrent`. ``in_graph``: a graph is being made, which checks them."""
    lengths = (lengths if in_graph else unwrapped(lengths)).to(torch.int64)  # T may be too large for a narrow type
    fits = ((lengths >= 0) & (lengths <= T)).all()
    last = "T" if in_graph else T
    check_values(fits, f"lengths must lie in 0..{last}, the time steps of the input", lengths.tolist, in_graph=in_graph)


def check_values(
    fits: Tensor,
    expected: str,
    got: Callable[[], object],
    error: type[Exception] = RuntimeError,
    in_graph: bool = False,
) -> None:
    """Checks what values a tensor has. ``fits`` is one bool, ``got`` is asked where it is false.

    Raises:
        ``error``: it is false. A compiled graph raises a RuntimeError when it runs, and a GPU one when it gets there,
            which nothing waits for.
    """
    if in_graph or torch.compiler.is_compiling() or fits.is_cuda:
        torch._assert_async(fits, expected)
    elif not fits.is_meta and not bool(unwrapped(fits).all()):  # meta tensors have no values
        raise error(f"{expected}, got {got()}")


def _check_batch_sizes(a: RecurrentArguments, sizes: Tensor) -> None:
    """Checks that the batch sizes of a packed call are those of B rows, which have the lines of the input."""
    counts, B, lines = unwrapped(sizes).tolist(), a.state[0].shape[0], a.input.shape[0]
    falling = all(n >= later for n, later in itertools.pairwise([*counts, 1]))
    if not falling or sum(counts) != lines or (counts and counts[0] != B):
        expected = f"batch_sizes that start at {B}, the rows of the state, never rise, and add up to {lines}"
        raise RuntimeError(f"{a.recurrence.network.lower()}: expected {expected}, the lines of the input; got {counts}")


def check_tensors(a: RecurrentArguments) -> None:
    """Checks shapes, types and devices of a recurrent op's arguments.

    Raises:
        RuntimeError: something does not fit. The message names it, with what was given and what is expected.
    """
    input, state, params = a.input, a.state, a.params
    static = type(input) is Tensor and not torch.compiler.is_compiling()  # symbolic sizes are no keys of a cache
    plain = a.lengths is None and a.reset is None and a.batch_sizes is None and a.changes is NO_CHANGES
    plain = plain and not a.population
    if static and plain and input.dim() == 3 and len(params) > 1 and params[1].dim() == 2:
        dtype = input.dtype
        if dtype.is_floating_point and input.is_cpu and input.layout is torch.strided:
            signatures = list(map(_SIGNATURE, (*state, *params)))
            if signatures == _expected_signatures(a.recurrence, input.shape, params[1].shape, dtype):
                return
    _check_one_by_one(a)


_SIGNATURE = operator.attrgetter("shape", "dtype", "is_cpu", "layout")


@functools.lru_cache(CACHED)
def _expected_signatures(
    recurrence: Recurrence, input: torch.Size, weight_hh: torch.Size, dtype: torch.dtype
) -> list[tuple[tuple[int, ...], torch.dtype, bool, torch.layout]]:
    """Returns the signatures that state and parameters must have. Empty, which fits no call, for wrong sizes."""
    H, P = weight_hh[0] // GATES[recurrence.network], weight_hh[1]
    if H < 1 or P < 1 or (P != H and not recurrence.projected):
        return []
    state = tuple((input[1], size) for size in (P, H)[: len(recurrence.state_names)])
    shapes = (*state, *recurrence.parameter_shapes(input[2], H, P).values())
    types = (*(dtype for _ in state), *parameter_types(recurrence, dtype).values())
    return [(shape, type, True, torch.strided) for shape, type in zip(shapes, types, strict=True)]


def parameter_types(recurrence: Recurrence, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Returns the types that parameters must have with an input of type ``dtype``: int8 weights have scales in float32
    or wider."""
    types = dict.fromkeys(recurrence.parameter_names, dtype)
    if recurrence.quantized:
        types |= dict.fromkeys(QUANTIZED, torch.int8)
        types |= dict.fromkeys([f"{name}_scale" for name in QUANTIZED], torch.promote_types(dtype, torch.float32))
    return types


def _check_one_by_one(a: RecurrentArguments) -> None:
    """Checks one tensor after the other, for `check_tensors`, and raises the error for the first that does not fit."""
    input, state, params, recurrence = a.input, a.state, a.params, a.recurrence
    op, names = recurrence.network.lower(), recurrence.parameter_names
    if len(params) != len(names) or len(state) != len(recurrence.state_names):
        expected = f"parameters {list(names)} and state {list(recurrence.state_names)}"
        got = f"{len(params)} parameters and {len(state)} state tensors"
        raise RuntimeError(f"{op}: expected {expected}, got {got}")
    lines = "T, B" if a.batch_sizes is None else "lines"
    if input.dim() != (3 if a.batch_sizes is None else 2) or params[0].dim() != 2 or params[1].dim() != 2:
        shapes = [list(t.shape) for t in (input, params[0], params[1])]
        raise RuntimeError(
            f"{op}: expected input [{lines}, I], weight_ih and weight_hh with 2 dimensions, got {shapes}"
        )
    if a.batch_sizes is not None:
        sizes = a.batch_sizes
        if a.lengths is not None or not state[0].dim() or sizes.dim() != 1 or sizes.dtype != torch.int64:
            got = f"{sizes.dtype} {list(sizes.shape)}" + ("" if a.lengths is None else " and lengths")
            raise RuntimeError(f"{op}: expected batch_sizes (T,) of type torch.int64, and no lengths; got {got}")
        if not sizes.is_cpu:
            raise RuntimeError(f"{op}: expected batch_sizes on the CPU, got {sizes.device}")
    _, B, I, H, P = a.sizes  # noqa: E741
    if H < 1 or P < 1:
        raise RuntimeError(f"{op}: expected a hidden size of at least 1, got weight_hh {list(params[1].shape)}")
    if not recurrence.projected:
        P = H
    expected_shapes: dict[str, tuple[int, ...]] = {
        f"initial {name}": (B, size) for name, size in zip(recurrence.state_names, (P, H), strict=False)
    }
    expected_shapes |= recurrence.parameter_shapes(I, H, P)
    tensors = dict(zip(expected_shapes, (*state, *params), strict=True))
    restart, kept = a.changes.restart, a.changes.kept
    if len(restart) not in (0, len(state)) or len(kept) not in (0, len(state)):
        got = f"{len(restart)} and {len(kept)}"
        raise RuntimeError(f"{op}: expected restart and kept of {len(state)} parts each, or none, got {got}")
    for name, part, size in zip(recurrence.state_names, restart, (P, H), strict=False):
        expected_shapes[f"{name} of restart"], tensors[f"{name} of restart"] = (B, size), part
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    check_dense(op, "input", input)
    if input.dtype not in (found := {p.dtype for p in params}) and len(found) == 1 and not recurrence.quantized:
        raise RuntimeError(
            f"{op}: expected input of type {params[0].dtype}, as the parameters are, got {input.dtype}; "
            f"convert the input by .to({params[0].dtype}), or the module by .to({input.dtype})"
        )
    types = parameter_types(recurrence, input.dtype)
    for name, tensor in tensors.items():
        check_dense(op, name, tensor)
        shape = expected_shapes[name]
        if tuple(tensor.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {list(shape)}, got {list(tensor.shape)}")
        if tensor.dtype != (dtype := types.get(name, input.dtype)):
            why = ", as input is" if dtype is input.dtype else ""
            raise RuntimeError(f"{op}: expected {name} of type {dtype}{why}, got {tensor.dtype}")
    masks = {"lengths": (a.lengths, (B,), False), "reset": (a.reset, tuple(a.lines), True)}
    for name, (mask, shape, is_bool) in masks.items():
        if mask is None:
            continue
        check_dense(op, name, mask)
        if tuple(mask.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {list(shape)}, got {list(mask.shape)}")
        wrong = mask.dtype.is_floating_point or mask.dtype.is_complex or (mask.dtype == torch.bool) != is_bool
        if wrong:
            raise RuntimeError(f"{op}: expected {name} of {'bool' if is_bool else 'an integer type'}, got {mask.dtype}")
        tensors[name] = mask
    of_shares: dict[str, tuple[int, ...]] = {name: (*a.lines, size) for name, size in zip("hc", (P, H), strict=True)}
    tensors |= _check_factors(a, op, (B, P), of_shares) | _check_population(a, op)
    for name, tensor in tensors.items():
        if tensor.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {tensor.device}")


def _check_factors(
    a: RecurrentArguments, op: str, of_dropout: tuple[int, ...], of_shares: dict[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Checks what the state is multiplied by between steps, and returns it by its name."""
    compute_type = torch.promote_types(a.input.dtype, torch.float32)
    shapes = {"dropout": of_dropout} | {f"kept share of {name}": shape for name, shape in of_shares.items()}
    given = dict(zip(shapes, (a.changes.dropout, *a.changes.kept), strict=False))
    found = {name: tensor for name, tensor in given.items() if tensor is not None}
    for name, tensor in found.items():
        check_dense(op, name, tensor)
        one = (1,) * len(shapes[name])
        fits = tuple(tensor.shape) == shapes[name] or (name != "dropout" and tuple(tensor.shape) == one)
        if not fits or tensor.dtype != compute_type:
            expected = f"{name} of shape {list(shapes[name])} and type {compute_type}"
            raise RuntimeError(f"{op}: expected {expected}, got {list(tensor.shape)} and {tensor.dtype}")
    return found


def _check_population(a: RecurrentArguments, op: str) -> dict[str, Tensor]:
    """Checks the moments that batch norm is given, and returns them by name."""
    if not a.population:
        return {}
    names = [f"{m} of {gain} in the population" for gain in a.recurrence.gain_names for m in ("mean", "variance")]
    expected = a.empty_moments() if a.recurrence.norm == "batch" else []
    if len(a.population) != len(expected):
        norm = a.recurrence.norm
        raise RuntimeError(f"{op}: expected a population of {len(expected)} for norm={norm!r}, got {len(a.population)}")
    for name, like, tensor in zip(names, expected, a.population, strict=True):
        check_dense(op, name, tensor)
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            wanted = f"{name} of shape {list(like.shape)} and type {like.dtype}"
            raise RuntimeError(f"{op}: expected {wanted}, got {list(tensor.shape)} and {tensor.dtype}")
    return dict(zip(names, a.population, strict=True))


def check_recurrent_gradients(
    a: RecurrentArguments,
    saved: Sequence[Tensor],
    expected: Sequence[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
) -> None:
    """Checks what else the backward of a recurrent op is given; hooks on saved tensors can put others in their place.

    ``expected``: the engine's `recurrent_saved`, before which the moments come that the forward has found.

    Raises:
        RuntimeError: something does not fit, as in `check_recurrent`.
    """
    expected = [*a.new_moments(), *expected]
    counts = len(expected), len(a.state)
    if (len(saved), len(grad_state)) != counts:
        raise RuntimeError(
            f"{a.recurrence.network.lower()}: expected {counts[0]} saved tensors and {counts[1]} gradients of the "
            f"final state, got {len(saved)} and {len(grad_state)}"
        )
    for tensor, like in zip(saved, expected, strict=True):
        _check_alike(a, "saved", tensor, like.shape, like.dtype)
    _check_alike(a, "grad_output", grad_output, (*a.lines, a.sizes[4]), a.input.dtype)
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


def unwrapped(tensor: Tensor) -> Tensor:
    """Takes off what `torch.func` wraps around a tensor. Under ``vmap`` this leaves all cases, with values."""
    if torch.compiler.is_compiling():
        return tensor
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor
