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


class Taken(NamedTuple):
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
def watched(module: torch.nn.Module, note: Callable[[Taken], None]) -> Iterator[None]:
    """Inside the ``with``, calls ``note`` with what every layer of layernorm's recurrent modules is called with.

    A stepper refuses torch's hooks. Instead, the modules' own methods are covered by methods that call ``note`` first.

    Args:
        module: any network.
        note: is called with a `Taken` before each call of a layer in one direction, and before each step of a stepper.
    """
    covered: list[Normalised] = []
    try:
        for name, part in module.named_modules():
            if isinstance(part, Recurrent | RecurrentCell):
                covered.append(part)
                vars(part).update(_covers(name, part, note))
        yield
    finally:
        for part in covered:
            for method in ("_run_layer", "_once", "stepper"):
                vars(part).pop(method, None)


def _covers(name: str, part: Recurrent | RecurrentCell, note: Callable[[Taken], None]) -> dict[str, Any]:
    """The methods that take the place of a module's own."""
    if isinstance(part, RecurrentCell):
        return _of_cell(name, part, note)
    network, run_layer, stepper = part, part._run_layer, part.stepper

    def named(suffix: str) -> str:
        layer = suffix.removeprefix("_l").replace("_", " ")
        return name if len(network._suffixes) == 1 else f"{name or 'the module'}, layer {layer}"

    def covered(
        x: Tensor, state: list[Tensor], suffix: str, lengths: Any, reset: Any, reverse: bool, *rest: Any
    ) -> Any:
        params = network._parameters_of(suffix)
        note(Taken(named(suffix), network, x, state, params, lengths, reset, reverse))
        return run_layer(x, state, suffix, lengths, reset, reverse, *rest)

    def covered_stepper() -> Any:
        made = stepper()
        made._layers = [
            _noting(take, lambda x, state, suffix=suffix: note(  # type: ignore[misc]
                Taken(named(suffix), network, x[None], state, network._parameters_of(suffix))))
            for take, suffix in zip(made._layers, network._suffixes, strict=True)
        ]  # fmt: skip
        return made

    return {"_run_layer": covered, "stepper": covered_stepper}


def _of_cell(name: str, cell: RecurrentCell, note: Callable[[Taken], None]) -> dict[str, Any]:
    once, stepper = cell._once, cell.stepper

    def say(x: Tensor, state: Sequence[Tensor]) -> None:
        note(Taken(name, cell, x[None], state, cell._read(cell._names)))

    def covered_stepper() -> Any:
        made = stepper()
        made._steps = _noting(made._steps, say)  # type: ignore[assignment]
        return made

    return {"_once": _noting(once, say), "stepper": covered_stepper}


def _noting(take: Callable[..., Any], say: Callable[[Tensor, Sequence[Tensor]], None]) -> Callable[..., Any]:
    """The same function of an input and a state, which ``say`` is called with first."""

    def covered(x: Tensor, state: Sequence[Tensor], *rest: Any) -> Any:
        say(x, state)
        return take(x, state, *rest)

    return covered
