"""The argument ``gain_init``: what each gain of a network starts at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

from ..formula import Recurrence

Start = float | Literal["match"]
"""What one gain starts at: a number, or the size that its vector has in the plain network."""

GainInit = Start | Literal["steady"] | Mapping[str, Start] | None
"""The argument ``gain_init`` of a network."""

STEADY, STEADY_CARRIED = 0.6, 0.5
"""The recurrent gain of the start ``"steady"``, and that of formulas whose normalised cell is carried on. It is just
below the edge above which gradients grow over time (docs/theory.md, "Stability")."""

_DEFAULTS: Mapping[str | None, float] = {"batch": 0.1}
"""Where a gain does not start at 1. Batch norm: Cooijmans et al., section 5."""


def check_gain_init(gain_init: Any) -> None:
    """Checks all that can be checked without the equations.

    Raises:
        ValueError: it is no finite number, no name of a start and no mapping to numbers and ``"match"``.
    """
    is_mapping = isinstance(gain_init, Mapping)
    names = ("match",) if is_mapping else ("match", "steady")
    for value in gain_init.values() if is_mapping else [gain_init]:
        is_name = isinstance(value, str) and value in names
        if not (_is_number(value) or is_name or (value is None and not is_mapping)):
            expected = "a finite number, 'match', 'steady', None or a mapping of gains to numbers and 'match'"
            raise ValueError(f"gain_init should be {expected}, got {gain_init!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def gains_of(gain_init: GainInit, recurrence: Recurrence, norm: str | None) -> dict[str, Start]:
    """Returns by name the gains that ``gain_init`` sets, and what it sets them to.

    Raises:
        ValueError: the equations do not have a gain that it names.
    """
    names = recurrence.gain_names
    if gain_init is None:
        return dict.fromkeys(names, _DEFAULTS.get(norm, 1.0))
    if isinstance(gain_init, Mapping):
        for name in gain_init:
            if name not in names:
                raise ValueError(f"gain_init: expected gains of {[*names]}, got {name!r}{_why_none(recurrence, norm)}")
        return dict(gain_init)
    if gain_init != "steady":
        return dict.fromkeys(names, gain_init)
    if recurrence.norm == "batch":
        raise ValueError("gain_init='steady' is for layer and RMS norm; under batch norm all gains start at 0.1")
    if recurrence.places.hidden.gain is None:
        raise ValueError(
            f"gain_init='steady' sets the gain of W_hh h by itself, gain_hh; the gains here are {[*names]}"
            f"{_why_none(recurrence, norm)}; in an LSTM or GRU formula='paper' has it"
        )
    return {recurrence.places.hidden.gain: steady_gain(recurrence)}


def steady_gain(recurrence: Recurrence) -> float:
    """Returns the gain of W_hh h in the start ``"steady"``."""
    return STEADY_CARRIED if recurrence.formula.cell == "carry" else STEADY


def _why_none(recurrence: Recurrence, norm: str | None) -> str:
    if recurrence.places.both.gain is not None:
        return f", as this formula has one norm of W_ih x + W_hh h in {recurrence.network}"
    return "" if recurrence.gain_names else f", as norm={norm!r} has no gains by that name"
