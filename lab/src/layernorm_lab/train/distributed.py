"""Training in several processes, with the results that one process would have."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layernorm.nn import BatchNorm

from ..errors import RunError

if TYPE_CHECKING:
    from accelerate import Accelerator


def accelerator(device: str, precision: str, tracker: str = "none", out: Path | None = None) -> Accelerator:
    """Chooses the device, "auto" (a GPU if there is one), "cpu" or "cuda", the precision, "float32" or "bfloat16"
    (autocast in the forward pass), the processes of this command, and a tracker that also gets the records
    (`tracking.tracked`). One that writes files has them in the folder `out`."""
    # DDP imports torch._dynamo. If that happens after the processes have connected, it keeps references to the
    # connection. Its threads then outlive `destroy_process_group`, and sometimes abort the interpreter at its exit
    # (torch 2.13).
    import torch._dynamo
    from accelerate import Accelerator

    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("there is no CUDA device here; use --device cpu")
    cpu = device == "cpu" or not torch.cuda.is_available()
    mixed = {"float32": "no", "bfloat16": "bf16"}[precision]
    log_with = None if tracker == "none" else tracker
    return Accelerator(cpu=cpu, mixed_precision=mixed, log_with=log_with, project_dir=out)


@contextlib.contextmanager
def processes_ended() -> Iterator[None]:
    """Closes the processes' connection at the end of the command, so that no process and no thread is left waiting.

    Raises:
        RunError: another of the processes has ended.
    """
    try:
        yield
    except RuntimeError as error:
        if "/gloo/" in str(error):  # gloo connects the processes; its text names its source file
            raise RunError("another process of this run has ended; the same command resumes") from error
        raise
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def share_of_loss(total: Tensor, count: int | None) -> Tensor:
    """Computes this process's share of a batch's loss from what its task returned. The shares of all processes add up
    to that loss."""
    if count is None:
        return total
    counts = torch.tensor(count, device=total.device)
    torch.distributed.all_reduce(counts)
    return total / int(counts)


class _Sum(torch.autograd.Function):
    """The sum over the processes, differentiable: every process's result depends on every process's input."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Sum.apply(grad)


def gathered(share: Tensor, size: int, rank: int, processes: int) -> Tensor:
    """Gathers the rows of a batch `[size, N]` from all processes, differentiably. Each gives the share `[M_local, N]`
    that `Shuffled` gave it.

    Every process may compute the whole batch's loss from them, and give it as that of one case: the mean over the
    processes is that loss.
    """
    if processes == 1:
        return share
    rows = torch.arange(rank, size, processes, device=share.device)
    return _Sum.apply(share.new_zeros(size, *share.shape[1:]).index_copy(0, rows, share))


def check_whole_batch(norm: str, processes: int) -> None:
    """Refuses recurrent batch norm in several processes: each would take the statistics of its own share of a batch."""
    if processes > 1 and norm.startswith("batch"):
        raise RunError(
            f"--norm {norm} needs the whole batch in one process, for its statistics; got {processes} processes"
        )


class GlobalBatchNorm(BatchNorm):
    """Batch normalisation with the statistics of the global batch, of which each process holds a part.

    Moments are summed over the processes with a differentiable all-reduce, and the shares may differ in size. torch's
    SyncBatchNorm runs on GPUs only.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalises this process's rows `[M_local, N]` by the mean and variance of all rows."""
        return _by_global_batch(self, input, self.unbiased) if self.training else super().forward(input)


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """`GlobalBatchNorm` for maps, which are normalised over the global batch's images and their positions."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalises this process's maps `[M_local, C, H, W]`."""
        return _by_global_batch(self, input) if self.training else super().forward(input)


def _by_global_batch(norm: BatchNorm | nn.BatchNorm2d, input: Tensor, unbiased: bool = False) -> Tensor:
    """Normalises `[M_local, N, ...]` over all dimensions but N and all processes, and moves the running averages."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    rows = input.movedim(1, -1).float()  # [M_local, ..., N]
    over = tuple(range(rows.dim() - 1))
    sums = _Sum.apply(torch.cat([rows.sum(over), rows.new_full((1,), math.prod(rows.shape[:-1]))]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = rows - mean
    squares = _Sum.apply(centred.square().sum(over))
    variance = squares / (count - 1 if unbiased else count)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(squares / (count - 1), norm.momentum)
    output = centred * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
    return output.movedim(-1, 1).to(input.dtype)


def share_batch_norms(model: nn.Module) -> None:
    """Replaces the batch norms inside a model, in place, by those of the global batch. Call it before the optimiser
    is made."""
    for name, child in model.named_children():
        shared: nn.Module
        if isinstance(child, BatchNorm):
            shared = GlobalBatchNorm(child.num_features, child.eps, child.momentum, unbiased=child.unbiased)
        elif isinstance(child, nn.BatchNorm2d):
            shared = GlobalBatchNorm2d(child.num_features, child.eps, child.momentum)
        else:
            share_batch_norms(child)
            continue
        shared.load_state_dict(child.state_dict())
        setattr(model, name, shared)
