"""What autocast casts in a recurrent call: as torch's own networks and cells do under it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..equations.arguments import RecurrentArguments
from ..formula import QUANTIZED
from ._bind import constant_in_graph


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
    """Says whether oneDNN computes torch's padded LSTM without projections on this CPU, for inputs of a type."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return not torch.is_grad_enabled() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def cast_by_autocast(a: RecurrentArguments, dtype: torch.dtype) -> RecurrentArguments:
    """Casts to the type of a call under autocast, but for the scales of int8 weights, and for integers and float64,
    which torch also leaves as they are."""
    changes, params = a.changes, a.params
    if changes.restart:
        changes = changes._replace(restart=cast_tensors(changes.restart, dtype))
    scales = params[len(params) - len(QUANTIZED) :] if params[0].dtype is torch.int8 else ()
    params = [*cast_tensors(params[: len(params) - len(scales)], dtype), *scales]
    (input,) = cast_tensors([a.input], dtype)
    return a._replace(input=input, state=cast_tensors(a.state, dtype), params=params, changes=changes)


def cast_projected(output: Tensor, final: Sequence[Tensor], autocast: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Casts the h of a projected LSTM to the type of autocast, as it is a product; other networks' results stay."""
    if len(final) == 1 or final[0].shape[1] == final[1].shape[1]:
        return output, [*final]
    output, h = cast_tensors([output, final[0]], autocast)
    return output, [h, *final[1:]]


def cast_tensors(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Casts to the type of autocast what it casts."""
    return [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]
