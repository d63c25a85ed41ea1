"""Records what every layer of a recurrent network is called with, including the steps of steppers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..nn._cell import RecurrentCell
from ..nn._normalised import Normalised
from ..nn._recurrent import Recurrent


class LayerCall(NamedTuple):
    """What one layer in one direction was called with, for a sequence or for a single step."""

    name: str  # of the module and its layer: "encoder", with several layers "encoder, layer 1 reverse"
    module: Normalised
    input: Tensor  # (T, B, I)
    state: Sequence[Tensor]  # before the call: h (B, P), in an LSTM also c (B, H)
    params: list[Tensor]  # in the order of `Recurrence.parameter_names`
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False


@contextlib.contextmanager
def watch_calls(module: torch.nn.Module, note: Callable[[LayerCall], None]) -> Iterator[None]:
    """Calls ``note`` inside the ``with``, with what every layer of layernorm's recurrent modules is called with.

    A stepper refuses torch's hooks. Instead, the modules' own methods are covered by methods that call ``note`` first.

    Args:
        module: any network.
        note: is called with a `LayerCall` before each call of a layer in one direction, and each step of a stepper.
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

    def layer_name(suffix: str) -> str:
        layer = suffix.removeprefix("_l").replace("_", " ")
        return name if len(network._suffixes) == 1 else f"{name or 'the module'}, layer {layer}"

    def covered(
        x: Tensor, state: list[Tensor], suffix: str, lengths: Any, reset: Any, reverse: bool, *rest: Any
    ) -> Any:
        params = network._parameters_of(suffix)
        note(LayerCall(layer_name(suffix), network, x, state, params, lengths, reset, reverse))
        return run_layer(x, state, suffix, lengths, reset, reverse, *rest)

    def covered_stepper() -> Any:
        stepper = make_stepper()
        stepper._layers = [
            _with_note(take_step, lambda x, state, suffix=suffix: note(  # type: ignore[misc]
                LayerCall(layer_name(suffix), network, x[None], state, network._parameters_of(suffix))))
            for take_step, suffix in zip(stepper._layers, network._suffixes, strict=True)
        ]  # fmt: skip
        return stepper

    return {"_run_layer": covered, "stepper": covered_stepper}


def _covering_methods_of_cell(name: str, cell: RecurrentCell, note: Callable[[LayerCall], None]) -> dict[str, Any]:
    take_step, make_stepper = cell._take_step, cell.stepper

    def note_call(x: Tensor, state: Sequence[Tensor]) -> None:
        note(LayerCall(name, cell, x[None], state, cell._parameters_named(cell._names)))

    def covered_stepper() -> Any:
        stepper = make_stepper()
        stepper._steps = _with_note(stepper._steps, note_call)  # type: ignore[assignment]
        return stepper

    return {"_take_step": _with_note(take_step, note_call), "stepper": covered_stepper}


def _with_note(take: Callable[..., Any], note_call: Callable[[Tensor, Sequence[Tensor]], None]) -> Callable[..., Any]:
    """Makes the same function of an input and a state, but calls ``note_call`` with them first."""

    def covered(x: Tensor, state: Sequence[Tensor], *rest: Any) -> Any:
        note_call(x, state)
        return take(x, state, *rest)

    return covered
