"""What a user calls a recurrent network with, as its layers take it, and the way back for their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..equations.checks import check_dense, check_values
from ..equations.schedule import lines_of
from ..functional._autocast import cast_tensors, is_onednns
from ..functional._bind import autocast_type, is_eager
from ..functional._resets import as_cuts
from ._layers import Batch, Layers
from ._normalised import State

Taken = tuple[Batch, Callable[[Tensor, State], tuple[Any, State]]]
"""A batch, and the function from what its layers return, output and final state, to what the user gets."""

_WORTH_PACKING = 256  # steps, padding included: fewer take as long as it takes to pack them


def take_in(layers: Layers, input: Any, hx: Any, lengths: Any, reset: Any, reset_hx: Any) -> Taken:
    """Takes any input that torch's module takes. The arguments are those of `Recurrent.forward`.

    Raises:
        RuntimeError, ValueError, TypeError: something does not fit; the message names it.
    """
    name, state, restart = type(layers).__name__, layers._state_from(hx), layers._state_from(reset_hx, "reset_hx")
    if restart is not None and reset is None:
        raise ValueError(f"{name}: reset_hx is where a sequence starts again after a cut; it needs reset, got None")
    if isinstance(input, PackedSequence):
        if lengths is not None:
            raise ValueError(f"{name}: a PackedSequence has its own lengths; lengths must be None")
        return _packed(layers, input, state, reset, restart)
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}: expected input to be a Tensor or PackedSequence, got {type(input).__name__}")
    check_dense(name, "input", input)
    if input.dim() not in (2, 3):
        raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
    if state is not None:
        _check_dims(input, "hx", state)
    if restart is not None:
        _check_dims(input, "reset_hx", restart)
    if input.dim() == 3:
        return _padded(layers, input, state, lengths, reset, restart)
    if lengths is not None:
        raise ValueError(f"{name}: lengths needs a batch, got unbatched input {list(input.shape)}")
    return _unbatched(layers, input, state, reset, restart)


def _check_dims(input: Tensor, what: str, state: State) -> None:
    for part in state:
        if part.dim() != input.dim():
            form = "batched 3-D" if input.dim() == 3 else "unbatched 2-D"
            raise RuntimeError(f"For {form} input, {what} should also be {input.dim()}-D but got {part.dim()}-D tensor")


def _padded(layers: Layers, input: Tensor, hx: State | None, lengths: Any, reset: Any, restart: State | None) -> Taken:
    """Takes (T, B, I), or (B, T, I) with batch first."""
    x = input.transpose(0, 1) if layers.batch_first else input
    T, B = x.shape[:2]
    cut, starts = (None, ()) if reset is None else _cuts(layers, reset, restart, (T, B), x)
    hx = _state_of_padded(layers, x, hx, B)
    if lengths is not None and not isinstance(lengths, Tensor):
        lengths = _as_tensor(type(layers).__name__, lengths, x.device)

    def back(output: Tensor, state: State) -> tuple[Tensor, State]:
        return output.transpose(0, 1) if layers.batch_first else output, state

    if lengths is None or not _is_worth_packing(layers, x, lengths):
        return Batch(x, B, hx, lengths, cut, starts), back
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    batch, as_packed = _in_lines(layers, packed, hx, B, cut, starts)

    def padded_back(output: Tensor, state: State) -> tuple[Tensor, State]:
        of_packed, state = as_packed(output, state)
        return back(pad_packed_sequence(of_packed, total_length=T)[0], state)

    return batch, padded_back


def _unbatched(layers: Layers, input: Tensor, hx: State | None, reset: Any, restart: State | None) -> Taken:
    """Takes (T, I) as a batch of one row."""
    x, hx = input.unsqueeze(1), None if hx is None else tuple(part.unsqueeze(1) for part in hx)
    if reset is not None:
        reset = as_cuts(reset, input.shape[:1], type(layers).__name__).unsqueeze(0 if layers.batch_first else 1)
        restart = None if restart is None else tuple(part.unsqueeze(1) for part in restart)
    cuts = _cuts(layers, reset, restart, x.shape[:2], x)

    def back(output: Tensor, state: State) -> tuple[Tensor, State]:
        return output.squeeze(1), tuple(part.squeeze(1) for part in state)

    return Batch(x, 1, _state_of_padded(layers, x, hx, 1), None, *cuts), back


def _packed(layers: Layers, input: PackedSequence, hx: State | None, reset: Any, restart: State | None) -> Taken:
    data, sizes, order, _ = input
    name = type(layers).__name__
    if torch.compiler.is_exporting() and sizes.dtype != torch.int64:  # what pack_padded_sequence gives there
        raise RuntimeError(
            f"{name}: pack_padded_sequence cannot be exported; call the module with the padded batch and lengths= "
            "instead of packing"
        )
    check_dense(name, "input's data", data)
    if torch.jit.is_tracing():  # a number would be the example's; torch's modules have a tensor here, too
        B: Any = sizes[0]
    else:
        B = len(order) if order is not None else int(sizes[0].item()) if len(sizes) else 0
    return _in_lines(layers, input, hx, B, *_cuts(layers, reset, restart, (sizes.shape[0], B), data))


def _in_lines(
    layers: Layers, input: PackedSequence, hx: State | None, B: int, reset: Tensor | None, restart: State
) -> Taken:
    """Takes a packed batch of B rows. The cuts are those of a padded one."""
    data, sizes, order, inverse = input
    if order is not None:
        hx = tuple(s.index_select(1, order) for s in layers._initial_state(data, hx, B))
    if reset is not None:
        times, rows = (index.to(data.device) for index in lines_of(sizes, len(data)))
        if order is not None:
            rows, restart = order[rows], tuple(s.index_select(1, order) for s in restart)
        reset = reset[times, rows]

    def back(output: Tensor, state: State) -> tuple[PackedSequence, State]:
        if inverse is not None:
            state = tuple(s.index_select(1, inverse) for s in state)
        return PackedSequence(output, sizes, order, inverse), state

    return Batch(data, B, hx, None, reset, restart, sizes), back


def _cuts(
    layers: Layers, reset: Any, restart: State | None, rows: Sequence[int], x: Tensor
) -> tuple[Tensor | None, State]:
    """Returns the cuts of ``rows``, T and B, and the state that they start from, from ``reset`` and ``reset_hx``."""
    if reset is None:
        return None, ()
    T, B = rows
    number = layers.num_layers * len(layers._directions)
    shape, order = ((B, T), " (batch first, as the input)") if layers.batch_first else ((T, B), "")
    cut = as_cuts(reset, shape, type(layers).__name__, order)
    for part_name, part, size in zip(layers._state_names, restart or (), layers._state_sizes, strict=False):
        if tuple(part.shape) not in ((number, B, size), (number, 1, size)):
            expected = f"{(number, B, size)} or {(number, 1, size)}"
            raise RuntimeError(f"Expected {part_name} of reset_hx of size {expected}, got {list(part.shape)}")
    if autocast_type(x) is None:
        restart = tuple(part.to(x.dtype) for part in restart or ())
    expanded = tuple(_expand_rows(part, B) for part in restart or ())
    return cut.transpose(0, 1).contiguous() if layers.batch_first else cut, expanded


def _expand_rows(state: Tensor, B: int) -> Tensor:
    """Repeats one part of a state, (L * D, 1, size), for every row; one that has all rows stays."""
    if state.shape[1] == B:
        return state.contiguous()
    if torch.compiler.is_exporting():  # ONNX Runtime has no Expand of bfloat16
        return state.index_select(1, torch.zeros(B, dtype=torch.long, device=state.device))
    return state.expand(-1, B, -1).contiguous()


def _as_tensor(name: str, lengths: Any, device: torch.device) -> Tensor:
    try:
        lengths = torch.tensor(lengths, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}: expected lengths to be a Tensor or a list of ints, got {lengths!r}") from None
    return lengths if lengths.numel() else lengths.long()


def _is_worth_packing(layers: Layers, x: Tensor, lengths: Tensor) -> bool:
    """Says whether a padded batch is to be computed packed: at most half of it are steps of a row.

    Errors are left to the padded call. Rows of no steps have no place in a packed batch.
    """
    if not (x.is_cpu and is_eager([x, lengths])) or (layers.over_time is not None and layers.over_time.count_padding):
        return False
    steps = x.shape[0] * x.shape[1]
    if steps < _WORTH_PACKING or not x.numel():  # torch packs no empty tensors
        return False
    fits = lengths.dtype == torch.int64 and lengths.is_cpu and lengths.shape == x.shape[1:2]
    return fits and 2 * int(lengths.sum()) <= steps and int(lengths.min()) >= 1 and int(lengths.max()) <= len(x)


def _state_of_padded(layers: Layers, x: Tensor, hx: State | None, B: int) -> State | None:
    """Casts the initial state of a padded call where torch does.

    Under autocast on a CPU torch computes an LSTM without projections by oneDNN, with the state in autocast's type.
    Other calls keep their state; `type_under_autocast` then chooses the type as torch's cells do.
    """
    dtype = autocast_type(x) if layers.network == "LSTM" and not layers.proj_size and x.is_cpu and x.numel() else None
    if dtype is None or not is_onednns(x.dtype):
        return hx
    return tuple(cast_tensors(layers._initial_state(x, hx, B), dtype))


def lengths_of(mask: Tensor, input: Any, lengths: Any, batch_first: bool, name: str) -> Tensor:
    """Counts the steps that a mask has of each row, for the network of this name.

    Raises:
        TypeError, ValueError: it is no bool tensor of the input's first two dimensions, a row's steps do not come
            first, or there are ``lengths`` as well.
    """
    if lengths is not None:
        raise ValueError(f"{name}: mask and lengths say the same; expected one of them, got both")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        dtype = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name}: expected mask to be a bool Tensor, got {dtype}")
    check_dense(name, "mask", mask)
    if not isinstance(input, Tensor) or input.dim() != 3 or mask.shape != input.shape[:2]:
        size = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
        raise ValueError(f"{name}: expected mask to have the first two sizes of input {size}, got {list(mask.shape)}")
    rows = mask.transpose(0, 1) if batch_first else mask
    counts = rows.sum(0)
    first = (rows == (torch.arange(rows.shape[0], device=rows.device)[:, None] < counts)).all()
    check_values(
        first, f"{name}: expected each row's steps to come first in mask", lambda: "a row with a gap", ValueError
    )
    return counts
