"""`audit`: runs a network on a batch and says what is badly scaled at its start."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..convert import LayerCall, watch_calls, watch_torch_calls
from ..nn._normalised import check_module
from ._finding import Audit
from ._finite import first_not_finite
from ._gradients import findings_of_16_bits, findings_of_gradients, numbers, run
from ._layers import findings_of_layer
from ._over_time import findings_over_time
from ._spread import Spreads, watch_norms
from ._start import findings_of_start


def audit(
    module: torch.nn.Module,
    *batch: Any,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
) -> Audit:
    r"""Looks for what is badly scaled in a network at the start of training, and says how to fix it.

    It runs one batch forward and backward, and with an optimiser or in 16 bits some more times. If the loss, a gradient
    or a deviation is infinite or NaN, the only finding says where that begins: in a parameter, an input, the output,
    the loss or the gradients. Otherwise it looks for six faults:

    - **A vector without spread under a norm.** At some time step its deviation is at most :math:`\sqrt{\epsilon}` in
      half of the cases or more. The norm then divides by eps rather than by the deviation. Its output is not
      normalised, and its gradient is multiplied by up to :math:`1/\sqrt{\epsilon}`, which is 316 for 1e-5. This is
      measured under the layer, RMS, batch, group and instance norms of torch and of layernorm, and in every place of a
      recurrent formula. A subclass that normalises other dimensions than the last is left out. A vector does not count
      where an input or the state before the first step is 0, and makes it 0: no weight's gradient passes through it.
    - **One term drowns the others under a norm that they share.** In a formula that normalises the sum
      :math:`W_{ih} x + W_{hh} h`, one of the two has more than 10 times the deviation of the other, which then has less
      than 1 % of the variance. Or one input or unit has more than 0.9 of the sum of squares, so that all others
      together have less than a third of the deviation.
    - **The size of an input is lost.** Where :math:`W_{ih} x` is normalised by itself, an input five times as large
      gives nearly the same output, and of one feature only the sign is left. `audit` reports this if the deviation of
      :math:`W_{ih} x` differs much between the cases: sorted by it, the 90th of a hundred cases has more than twice
      the deviation of the 10th. With many measured features it does.
    - **A gradient that grows over time.** In every recurrent layer and direction, of layernorm or of torch, the
      gradient of the last h is carried back step by step. It grows more than 10 times. The finding says over how many
      steps it grows and what makes it grow: the norm of :math:`W_{hh} h`, of the sum or of the cell, or the weights. It
      also says which value ends the growth; the gradient was measured again with that value. Cuts and lengths count.
      Only the first 400 steps and 8 cases are measured. If a sequence comes in several calls of more than one step,
      each call is measured by itself. A gradient that shrinks is no fault; `Audit.growth` has the numbers.
    - **Gradients that differ by orders of magnitude.** Between parameters of one kind (weights, biases or gains of one
      class of modules) they differ more than 1000 times, as root mean squares over the elements. No single learning
      rate suits both. Where gradients grow over time, the limit is as many times higher, so that growth over time is
      not reported twice.
    - **A gradient that 16 bits falsify.** The parameters have 16 bits, or autocast is on around the call of `audit`.
      The gradient is then computed in float32 as well. The two differ by more than 0.1 of its length, and a smaller
      recurrent gain would end that; or they differ by more than 0.5.

    With an optimiser it also compares layernorm's recurrent networks with the *plain* ones, which have the same weights
    and no norm. A learning rate that was found for the plain networks may not suit networks that start with other
    sizes. `audit` then looks for three more faults:

    - **Parameters that the optimiser does not have**, although it has others of the same network. This happens where
      the optimiser was made before `convert`: the gains are not trained.
    - **A vector of another size than in the plain network.** Its gain is more than 4 times, or less than a quarter, of
      the vector's deviation in the plain network.
    - **A larger first update.** The optimiser's first update, at its learning rate, changes a weight matrix by more
      than 0.1 of the matrix's length, and more than 3 times as much as in the plain network. With Adam the two are the
      same, as its first update does not depend on the gradient's size. The optimiser's hooks run, so that clipping of
      the gradients counts if it is registered with ``optimizer.register_step_pre_hook``. The finding says how large the
      update is from two other starts at the same learning rate.

    A recurrent module is measured without recurrent dropout, zoneout and ``reset_hx``.

    The module runs in the mode that it is in, training or evaluation. When `audit` returns, its parameters, gradients,
    buffers, hooks and mode are as before, and so are the optimiser, its schedulers and torch's random state. No other
    tensor has got a gradient. A forward before the call keeps its backward.

    Args:
        module: any network. Norms and layernorm's recurrent modules inside it are measured, also where they run by
            ``stepper()``. For torch's recurrent modules only the gradient over time is measured.
        batch: the arguments to call it with, ``module(*batch)``.
        loss: ``loss(output) -> ()``. ``None``: the sum of the output's numbers, each times a random number that is the
            same in every call. A plain sum would not do, because the sum of a normalised vector is constant.
        optimizer: the optimiser that is going to train the module, or a list of several. It needs the training's
            ``loss``.

    Returns:
        `Audit`, a list of `Finding`. Printed, it is their text, and nothing where it is empty. Its ``growth`` has for
        each recurrent layer and direction the steps, and the factor by which the gradient grows or shrinks over them.

    Raises:
        TypeError: ``module`` is no module, or ``optimizer`` neither an optimiser nor a list of them.
        ValueError: ``optimizer`` is given without ``loss``, has no parameter of the module's, or no learning rate
            ``lr``.

    Example::

        found = ln.audit(ln.LSTM(28, 128), torch.randn(50, 32, 28))
        print(found)
        print(*found.growth, sep="\n")  # the module: 26.7 over 49 steps, 1.07 a step

        tagger = ln.convert(tagger)
        optimizer = torch.optim.SGD(tagger.parameters(), lr=0.015)
        print(ln.audit(tagger, words, loss=lambda scores: F.cross_entropy(scores, tags), optimizer=optimizer))

    Source: this library. The faults were found in the experiments of the paper's sections 6.4 and 6.5, on series with
    one feature, and on noise.
    """
    check_module("audit", module)
    optimizers = _optimizers(module, loss, optimizer)
    with torch.inference_mode(False):
        return _look_for_faults(module, batch, loss, optimizers)


def _look_for_faults(
    module: torch.nn.Module,
    batch: Sequence[Any],
    loss: Callable[[Any], Tensor] | None,
    optimizers: Sequence[torch.optim.Optimizer],
) -> Audit:
    spreads: Spreads = {}
    layers: dict[str, list[LayerCall]] = defaultdict(list)

    def note(call: LayerCall) -> None:
        layers[call.name].append(call)

    watches = [watch_norms(module, spreads), watch_calls(module, note), watch_torch_calls(module, note)]
    output, total, gradients = run(module, batch, loss, watches)
    not_finite = not all(bool(part.isfinite().all()) for part in [total, *(numbers(g) for _, g in gradients)])
    if not_finite and not bool(total.isfinite()):
        return Audit([first_not_finite(module, batch, output, total, gradients)])
    growth, of_time, over_time = findings_over_time(layers)
    if not_finite:
        return Audit(of_time or [first_not_finite(module, batch, output, total, gradients)], growth)
    findings = Audit(growth=growth)
    for calls in layers.values():
        findings += findings_of_layer(calls, spreads)
    findings[:0] = [finding for spread in spreads.values() for finding in spread.findings()]
    findings += of_time
    findings += findings_of_gradients(module, gradients, over_time)
    findings += findings_of_16_bits(module, batch, loss, over_time)
    if loss is not None and optimizers:
        findings += findings_of_start(module, batch, loss, optimizers)
    if not all(math.isfinite(finding.measured) for finding in findings):
        return Audit([first_not_finite(module, batch, output, total, gradients)])
    return findings


def _optimizers(
    module: torch.nn.Module, loss: object, given: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
) -> list[torch.optim.Optimizer]:
    """Returns the optimisers as a list, and refuses those that cannot be followed."""
    if given is None:
        return []
    optimizers: list[torch.optim.Optimizer] = list(given) if isinstance(given, Sequence) else [given]
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"audit: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if loss is None:
        raise ValueError("audit: an optimizer needs the training's loss, whose gradients it follows; got loss=None")
    parameters, groups = set(module.parameters()), [group for of in optimizers for group in of.param_groups]
    if not any(p in parameters for group in groups for p in group["params"]):
        raise ValueError("audit: the optimizer has no parameter of the module's")
    if not all("lr" in group for group in groups):
        raise ValueError("audit: expected the optimizer's parameter groups to have a learning rate, lr")
    return optimizers
