"""Records what every layer of a recurrent network is called with, and puts back what the call changed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engines.schedule import NO_CHANGES, StateChanges
from ..nn._cell import RecurrentCell
from ..nn._normalised import Normalised
from ..nn._recurrent import Recurrent


class LayerCall(NamedTuple):
    """What one layer in one direction was called with, for a sequence or for a single step."""

    name: str  # of the module and its layer (`layer_name`)
    module: Normalised
    suffix: str  # of the layer's parameters: "_l0", "_l0_reverse"..., of a cell ""
    input: Tensor  # (T, B, I)
    state: Sequence[Tensor]  # before the call: h (B, P), in an LSTM also c (B, H)
    params: list[Tensor]  # in the order of `Recurrence.parameter_names`
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False
    changes: StateChanges = NO_CHANGES  # what else happens to the state between steps: restarts, dropout, zoneout


def layer_name(name: str, module: Normalised, suffix: str) -> str:
    """Returns a layer's name from its module's: "encoder", with several layers "encoder, layer 1 reverse"."""
    layer = suffix.removeprefix("_l").replace("_", " ")
    return name if len(module._suffixes) == 1 else f"{name or 'the module'}, layer {layer}"


@contextlib.contextmanager
def watch_calls(module: torch.nn.Module, note: Callable[[LayerCall], None]) -> Iterator[None]:
    """Calls ``note`` inside the ``with``, with what every layer of layernorm's recurrent modules was called with.

    A stepper refuses torch's hooks. Instead, the modules' own methods are covered by methods that call ``note``, too.

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
    if isinstance(part, RecurrentCell):
        return _covering_methods_of_cell(name, part, note)
    network, run_layer, make_stepper = part, part._run_layer, part.stepper

    def note_call(x: Tensor, state: Sequence[Tensor], suffix: str, *rest: Any) -> None:
        params = network._parameters_of(suffix)
        note(LayerCall(layer_name(name, network, suffix), network, suffix, x, state, params, *rest))

    def covered(x: Tensor, state: list[Tensor], suffix: str, *rest: Any) -> Any:
        result = run_layer(x, state, suffix, *rest)
        note_call(x, state, suffix, *rest)
        return result

    def note_step(suffix: str, x: Tensor, state: Sequence[Tensor], dropout: Tensor | None) -> None:
        note_call(x[None], state, suffix, None, None, False, StateChanges(dropout=dropout))

    notes = [functools.partial(note_step, suffix) for suffix in network._suffixes]
    return {"_run_layer": covered, "stepper": lambda: _noted_stepper(make_stepper(), notes)}


def _covering_methods_of_cell(name: str, cell: RecurrentCell, note: Callable[[LayerCall], None]) -> dict[str, Any]:
    take_step, make_stepper = cell._take_step, cell.stepper

    def note_call(x: Tensor, state: Sequence[Tensor]) -> None:
        note(LayerCall(name, cell, "", x[None], state, cell._parameters_of("")))

    covered_stepper = lambda: _noted_stepper(make_stepper(), [note_call])  # noqa: E731
    return {"_take_step": _with_note(take_step, note_call), "stepper": covered_stepper}


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
    """Puts back what a forward pass changes: buffers, mode and torch's random state."""
    parts = list(module.modules())
    buffers = [(part, name, b, b.clone()) for part in parts for name, b in part._buffers.items() if b is not None]
    modes = [(part, part.training) for part in parts]
    devices = {p.device.index for p in module.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for part, name, buffer, before in buffers:
                    part._buffers[name] = buffer.copy_(before)
            for part, training in modes:
                part.training = training
