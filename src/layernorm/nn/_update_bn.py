"""`update_bn`: computes the population statistics of every batch norm in a model again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence

from ._normalised import check_module
from ._recurrent import Recurrent


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: torch.nn.Module,
    device: int | torch.device | str | None = None,
    *,
    run: Callable[[Any], object] | None = None,
) -> None:
    """Computes the population statistics of every batch norm in a model again, in one pass over a loader's batches.

    Weights that are averages over a training (`torch.optim.swa_utils.AveragedModel`) have other statistics than the
    weights that were trained. This function does what `torch.optim.swa_utils.update_bn` does. It also computes the
    statistics of layernorm's recurrent networks with ``norm="batch"``, which torch's function leaves as they are. The
    model runs in training mode without gradients. Afterwards each mean and variance is the average over the batches,
    with equal weights. At each time step only the batches that reach it count.

    Args:
        loader: gives the batches: tensors, `PackedSequence`, or lists and tuples of which the first element is the
            input.
        model: any module. Afterwards every part of it is in training or evaluation mode as before.
        device: the device that the input is moved to. ``None``: the input stays where it is.
        run: calls the model with a batch as the loader gives it. It is for models that take something else than one
            input: ``lambda batch: model(batch["x"], lengths=batch["lengths"])``. ``None``: ``model(input)``.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: the loader gives no batch; ``device`` is given with ``run``. After any error the statistics are as
            before.

    Example::

        average = torch.optim.swa_utils.AveragedModel(model)
        ...  # average.update_parameters(model) after each epoch
        ln.update_bn(loader, average)

    Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018,
    arXiv:1803.05407, section 3.2.
    """
    check_module("update_bn", model, "model")
    if run is not None and device is not None:
        raise ValueError("update_bn: with run=, device has no effect, as run calls the model by itself; give only one")
    parts: list[Any] = [part for part in model.modules() if _has_batch_norm(part)]
    if not parts:
        return
    modes = [(part, part.training) for part in model.modules()]
    statistics = [(buffer, buffer.clone()) for part in parts for buffer in part.buffers(recurse=False)]
    momenta = [(part, _set_momentum(part, None)) for part in parts]
    call = run or (lambda batch: model(_input_of(batch, device)))
    try:
        model.train()
        for part in parts:
            part.reset_running_stats()
        batches = 0
        for batch in loader:
            call(batch)
            batches += 1
        if not batches:
            raise ValueError("update_bn: the loader gave no batch")
    except BaseException:
        for buffer, numbers in statistics:
            buffer.copy_(numbers)
        raise
    finally:
        for part, momentum in momenta:
            _set_momentum(part, momentum)
        for part, training in modes:
            part.training = training


def _has_batch_norm(part: torch.nn.Module) -> bool:
    return isinstance(part, _BatchNorm) or (isinstance(part, Recurrent) and part.over_time is not None)


def _set_momentum(part: Any, momentum: float | None) -> float | None:
    """Gives a part with batch norm another momentum, and returns the old one."""
    old: float | None
    if isinstance(part, Recurrent):
        assert part.over_time is not None
        old, part.over_time = part.over_time.momentum, dataclasses.replace(part.over_time, momentum=momentum)
    else:
        old, part.momentum = part.momentum, momentum
    return old


def _input_of(batch: Any, device: int | torch.device | str | None) -> Any:
    is_several = isinstance(batch, list | tuple) and not isinstance(batch, PackedSequence)
    input = batch[0] if is_several else batch
    return input if device is None else input.to(device)
