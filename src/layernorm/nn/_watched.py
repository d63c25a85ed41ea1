"""Which layers of recurrent networks run with what: every call noted, steps of steppers too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._cell import RecurrentCell
from ._normalised import Normalised
from ._recurrent import Recurrent


class Taken(NamedTuple):
    """One layer in one direction over a sequence, or over a single step."""

    name: str  # of the module and its layer: "encoder", with several layers "encoder, layer 1 reverse"
    module: Normalised
    input: Tensor  # (T, B, I)
    state: Sequence[Tensor]  # before it: h (B, P), in an LSTM c (B, H)
    params: list[Tensor]  # in the order of `Recurrence.parameter_names`
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False


@contextlib.contextmanager
def watched(module: torch.nn.Module, note: Callable[[Taken], None]) -> Iterator[None]:
    """Notes what every layer of layernorm's recurrent modules inside a module is run with, while this holds.

    Not by torch's hooks, which a stepper refuses: the modules' own methods are covered by ones that note and go on.
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
    """The methods to put in place of a module's own."""
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
    """The same function of an input and a state; they are noted first."""

    def covered(x: Tensor, state: Sequence[Tensor], *rest: Any) -> Any:
        say(x, state)
        return take(x, state, *rest)

    return covered
