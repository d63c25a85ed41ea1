"""Several processes: what one needs so that they compute what one process would."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .errors import RunError

if TYPE_CHECKING:
    from accelerate import Accelerator


def accelerator(device: str, precision: str) -> Accelerator:
    """The device and the processes of this command.

    Args:
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        precision: "float32" or "bfloat16" (autocast in the forward pass).
    """
    from accelerate import Accelerator

    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("there is no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    mixed = {"float32": "no", "bfloat16": "bf16"}[precision]
    return Accelerator(cpu=cpu, mixed_precision=mixed)


@contextlib.contextmanager
def processes_ended() -> Any:
    """Closes the processes' connection at the end of the command, so that none is left waiting."""
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def is_main() -> bool:
    """Whether this process is the one that writes and speaks (asked before there is an accelerator)."""
    return int(os.environ.get("RANK", "0")) == 0


class _Sum(torch.autograd.Function):
    """The sum over the processes, differentiable: every process's result depends on every process's input."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        total = part.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return _Sum.apply(grad)


class GlobalBatchNorm(nn.Module):
    """Batch normalisation with the statistics of the global batch, of which each process holds a part.

    Moments are summed over the processes with a differentiable all-reduce, so that the shares may differ in size
    (torch's SyncBatchNorm runs on GPUs only). Parameters, buffers and their names are the replaced module's.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.eps, self.momentum, self.unbiased = norm.eps, norm.momentum, getattr(norm, "unbiased", False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises this process's rows `[M_local, N]` by the mean and variance of all rows."""
        if not self.training:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        wide = input.float()
        sums = _Sum.apply(torch.cat([wide.sum(0), wide.new_full((1,), len(wide))]))
        rows = sums[-1].detach()
        mean = sums[:-1] / rows
        centred = wide - mean
        squares = _Sum.apply(centred.square().sum(0))
        variance = squares / (rows - 1 if self.unbiased else rows)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(squares / (rows - 1), self.momentum)
        output = centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias
        return output.to(input.dtype)


def share_batch_norms(model: nn.Module, kind: type[nn.Module]) -> None:
    """Replaces the batch norms inside a model, in place, by ones that see the global batch."""
    for name, child in model.named_children():
        if isinstance(child, kind):
            setattr(model, name, GlobalBatchNorm(child))
        else:
            share_batch_norms(child, kind)
