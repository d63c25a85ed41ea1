"""Records what every layer of a recurrent network is called with, and puts back what the call changed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..equations.arguments import RecurrentArguments, StateChanges
from ..equations.schedule import unpacked
from ..nn._cell import RecurrentCell
from ..nn._normalised import Normalised
from ..nn._recurrent import Recurrent


class LayerCall(NamedTuple):
    """What one layer in one direction was called with, for a sequence or for a single step."""

    name: str  # of the module and its layer (`layer_name`)
    module: Normalised
    suffix: str  # of the layer's parameters: "_l0", "_l0_reverse"..., of a cell ""
    arguments: RecurrentArguments  # padded, also of a packed call


def layer_name(name: str, module: Normalised, suffix: str) -> str:
    """Returns a layer's name from its module's: "encoder", with several layers "encoder, layer 1 reverse"."""
    layer = suffix.removeprefix("_l").replace("_", " ")
    return name if len(module._suffixes) == 1 else f"{name or 'the module'}, layer {layer}"


@contextlib.contextmanager
def watch_calls(module: torch.nn.Module, note: Callable[[LayerCall], None]) -> Iterator[None]:
    """Calls ``note`` inside the ``with``, with what every layer of layernorm's recurrent modules was called with.

    Torch's hooks cannot be used: they do not see single layers, and a module with hooks has no stepper. So
    ``_run_layer`` or ``_take_step``, and ``stepper``, are shadowed on the instance by wrappers that also call ``note``,
    and removed at the end.

    Args:
        module: any network.
        note: is called with a `LayerCall` after each call of a layer in one direction, and each step of a stepper.
    """
    covered: list[Normalised] = []
    try:
        for name, part in module.named_modules():
            if isinstance(part, Recurrent | RecurrentCell):
                covered.append(part)
                vars(part).update(_covering_methods(name, part, note))
        yield
    finally:
        for part in covered:
            for method in ("_run_layer", "_take_step", "stepper"):
                vars(part).pop(method, None)


def _covering_methods(name: str, part: Recurrent | RecurrentCell, note: Callable[[LayerCall], None]) -> dict[str, Any]:
    """Makes the methods that take the place of a module's own."""
    make_stepper = part.stepper

    def note_call(a: RecurrentArguments, suffix: str) -> None:
        note(LayerCall(layer_name(name, part, suffix), part, suffix, unpacked(a)))

    def note_step(suffix: str, x: Tensor, state: Sequence[Tensor], dropout: Tensor | None = None) -> None:
        changes = StateChanges(dropout=dropout)
        note_call(RecurrentArguments(x[None], state, part._parameters_of(suffix), part.recurrence, changes), suffix)

    notes = [functools.partial(note_step, suffix) for suffix in part._suffixes]
    if isinstance(part, RecurrentCell):
        covered = {"_take_step": _with_note(part._take_step, notes[0])}
    else:
        covered = {"_run_layer": _with_note(part._run_layer, note_call)}
    return {**covered, "stepper": lambda: _noted_stepper(make_stepper(), notes)}


def _noted_stepper(stepper: Any, notes: Sequence[Callable[..., None]]) -> Any:
    """Makes a stepper's layers call ``notes``, one for each layer."""
    layers = stepper._prepared.layers
    stepper._prepared.layers = lambda x: list(map(_with_note, layers(x), notes))
    return stepper


def _with_note(take: Callable[..., Any], note_call: Callable[..., None]) -> Any:
    """Makes the same function, which calls ``note_call`` with its arguments afterwards."""

    def covered(*args: Any) -> Any:
        result = take(*args)
        note_call(*args)
        return result

    return covered


@contextlib.contextmanager
def put_back(module: torch.nn.Module) -> Iterator[None]:
    """Puts back what a forward pass changes: buffers, mode, tensors that modules keep from call to call as attributes,
    such as a state, and torch's random state. It does not undo a change of numbers inside a tensor that is no buffer,
    or of a list that grows in place.

    The buffers' version counters are put back as well: the buffers have their earlier numbers again, so a backward
    whose forward came before stays valid.
    """
    parts = list(module.modules())
    buffers = [(part._buffers, dict(part._buffers)) for part in parts]
    numbers = {b: b.clone() for _, before in buffers for b in before.values() if b is not None and _is_writable(b)}
    counted = tuple(b for b in numbers if not b.is_inference())
    modes = [(part, part.training) for part in parts]
    attributes = [(part, dict(vars(part))) for part in parts]
    devices = {p.device.index for p in module.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=list(devices)), torch.autograd._unsafe_preserve_version_counter(counted):
        try:
            yield
        finally:
            for now, before in buffers:  # entry by entry: those of a scripted module are no dict
                for name in [name for name, _ in now.items() if name not in before]:
                    del now[name]
                for name, buffer in before.items():
                    now[name] = buffer
            for part, training in modes:
                part.training = training
            for part, values in attributes:
                _put_tensors_back(vars(part), values)
            with torch.inference_mode():  # where tensors of that mode can be written, and others as well
                for tensor, earlier in numbers.items():
                    tensor.copy_(earlier)


def _is_writable(tensor: Tensor) -> bool:
    """Says whether torch lets numbers be changed: not those of an expanded tensor, which lie in one place."""
    if tensor.layout is not torch.strided:
        return True
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _put_tensors_back(attributes: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Gives the attributes that have got or lost tensors, by themselves or in tuples, lists and dicts, their earlier
    values."""
    absent = object()
    for name in {**attributes, **before}:
        now, earlier = attributes.get(name, absent), before.get(name, absent)
        if now is not earlier and any(isinstance(leaf, Tensor) for leaf in tree_leaves([now, earlier])):
            attributes.pop(name, None)
            attributes.update({} if earlier is absent else {name: earlier})
