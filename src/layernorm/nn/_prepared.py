"""What a stepper prepares once, and again where its module has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from operator import attrgetter, is_
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.compiler import is_dynamo_compiling

from ..functional._bind import autocast_type
from ..functional._steps import Steps
from ._normalised import Normalised

_version, _requires_grad, _address = attrgetter("_version"), attrgetter("requires_grad"), Tensor.data_ptr
_training = attrgetter("training")


def in_inference_mode() -> bool:
    """Says whether tensors are made for inference mode. torch.compile cannot trace torch's own question."""
    return not is_dynamo_compiling() and torch.is_inference_mode_enabled()


class PreparedLayers:
    """A module's layers for steps: prepared at the first step, and again at a step that finds the module changed."""

    def __init__(self, module: Normalised) -> None:
        module._check_calls()
        self.module, self.hooks = module, module._hooks_of_a_call
        self.last: _Preparation | None = None
        self.made_in_graph = is_dynamo_compiling()

    def layers(self, input: Tensor) -> list[Steps]:
        """Returns the layers for a step that ``input`` is given to.

        Raises:
            ValueError: the module has got a hook that no step runs.
        """
        if any(self.hooks):
            self.module._check_calls()
        autocast, last = autocast_type(input), self.last
        # A compiled graph may run after the module has changed and has no check for that, and tensors of torch.func's
        # transforms end with these. So both prepare the layers each time.
        if (is_dynamo_compiling() and not self.made_in_graph) or _are_functorch_transforms_active():
            return _Preparation(self.module, autocast).layers
        if last is None or not last.is_current(autocast):
            self.last = last = _Preparation(self.module, autocast)
        return last.layers

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stepper cannot be copied or pickled: it belongs to its module's weights; make a new one")


class _Preparation:
    """The layers, and what is compared to see whether they are still the module's."""

    def __init__(self, module: Normalised, autocast: torch.dtype | None) -> None:
        self.autocast, self.in_inference_mode = autocast, in_inference_mode()
        self.module, self.recurrence = module, module.recurrence
        with torch.enable_grad():  # computed or cast weights get a graph under no_grad, too: a later step may need it
            self.layers = [
                Steps(module._parameters_of(suffix), module.recurrence, autocast) for suffix in module._suffixes
            ]
        self.holders = [(holder, list(holder.values())) for holder in _holders(module)]
        self.tensors = [value for _, values in self.holders for value in values if isinstance(value, Tensor)]
        self.comparable = False
        if is_dynamo_compiling():  # where tensors have no versions
            return
        self.parts = [part for part in module.modules() if part is not module]  # parametrizations
        self.training = list(map(_training, self.parts))
        self.memory = [t.detach() for t in self.tensors]  # kept, so that no other tensor gets one of its addresses
        self.trained = list(map(_requires_grad, self.tensors))
        with contextlib.suppress(RuntimeError):  # inference tensors have no versions, those of torch.func no addresses
            self.versions, self.addresses = list(map(_version, self.tensors)), list(map(_address, self.tensors))
            self.comparable = True
        self.spent: list[bool] = []  # holds something once a backward has freed the graph that computed a weight
        spent = self.spent  # the hooks do not refer to the preparation, which would keep it from being freed
        for p in (p for steps in self.layers for p in steps.layer.params):
            if self.comparable and p.grad_fn is not None:
                p.register_hook(lambda _: spent.append(True))

    def is_current(self, autocast: torch.dtype | None) -> bool:
        """Says whether the module is as it was: its equations, its tensors, their numbers as far as torch counts
        changes, their place in memory, its parametrizations' mode, and autocast; where gradients are taken, also what
        needs one, and whether the graph that computed its weights is still there."""
        if autocast is not self.autocast:
            return False
        if is_dynamo_compiling():
            return True
        if not self.comparable or self.module.recurrence is not self.recurrence:
            return False
        for holder, values in self.holders:
            if len(holder) != len(values) or not all(map(is_, holder.values(), values)):
                return False
        if list(map(_version, self.tensors)) != self.versions or list(map(_address, self.tensors)) != self.addresses:
            return False
        if list(map(_training, self.parts)) != self.training:
            return False
        if not torch.is_grad_enabled():
            return True
        if self.spent:
            return False
        return in_inference_mode() is self.in_inference_mode and list(map(_requires_grad, self.tensors)) == self.trained


def _holders(module: Normalised) -> list[Mapping[str, Any]]:
    """Returns the dictionaries in which a module has its weights, or what it computes them from."""
    holders: list[Mapping[str, Any]] = [module._parameters]  # also an empty one: weights may come that are computed now
    for part in module.modules():
        holders += [tensors for tensors in (part._parameters, part._buffers) if tensors and tensors is not holders[0]]
    if any(name + suffix in vars(module) for name in module._names for suffix in module._suffixes):
        holders.append(vars(module))
    return holders
