"""Tensors as the kernels take them: of one type, and in order in memory."""

from __future__ import annotations

import torch
from torch import Tensor

LOWEST_ADDRESS = 1 << 40
"""A tensor at a higher address has memory. Lower ones are examined in `materialize`: a tensor without storage reports
its byte offset as its address, which is small."""


def materialize(tensor: Tensor) -> Tensor:
    """Returns the tensor itself, or zeros for one of torch's that stands for zeros and has no memory.

    Raises:
        RuntimeError: it has elements and no memory for them.
    """
    if tensor.data_ptr() > LOWEST_ADDRESS:
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.numel() and not tensor.untyped_storage().data_ptr():
        given = f"a tensor of shape {list(tensor.shape)} without storage on {tensor.device}"
        raise RuntimeError(f"layernorm: expected a tensor with its elements in memory, got {given}")
    return tensor


def contiguous(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a contiguous tensor of this type with the same numbers; the tensor itself if it is so."""
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg() and tensor.data_ptr() > LOWEST_ADDRESS:
        return tensor
    return materialize(tensor).to(dtype).contiguous().resolve_neg()


def contiguous_or_none(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns `contiguous` of a tensor, if there is one."""
    return None if tensor is None else contiguous(tensor, dtype)
