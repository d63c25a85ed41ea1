"""The sides of a comparison: their names in figures, tables and sentences, and which runs are theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..runs.folder import Run

NORMS = {
    "none": "baseline",
    "layer": "layer norm",
    "layer-shared": "layer norm, gain a channel",
    "layer-channels": "layer norm over channels",
    "batch": "batch norm",
    "batch-hidden": "batch norm, hidden layers",
    "batch-everywhere": "batch norm everywhere",
    "rms": "RMS norm",
    "weight": "weight norm",
    "group": "group norm",
}
"""The norms in the order in which they are shown, with their names in figures and tables."""

GAINED = ("layer", "rms")
"""The norms whose initial gain is `gain_init`. The baseline has no gain, and batch norm's is always the same."""

RATE = "learning_rate"
"""The option for which each arm may take its own best value."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        norm: the norm of its runs.
        options: other options of its runs by which it differs from the other arm.
        prefix: what stands before the metrics' names in its records: batch norm's exact statistics are `exact_`.
    """

    norm: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    prefix: str = ""

    @property
    def gain(self) -> float | str:
        """The initial gain, or the name of a start; 1 for a norm that has none."""
        return self.options.get("gain_init", 1.0) if self.norm in GAINED else 1.0

    @property
    def name(self) -> str:
        """Its name in figures, tables and sentences."""
        gain = ""
        if self.gain != 1.0:
            gain = f" with the start {self.gain}" if isinstance(self.gain, str) else f" with gain {self.gain:g}"
        return NORMS[self.norm] + gain + ", exact statistics" * bool(self.prefix)

    @property
    def spoken(self) -> str:
        """Its name in a sentence about networks."""
        return "the baseline" if self.norm == "none" else self.name

    @property
    def key(self) -> str:
        """Its name in the names of files and in `STYLES`, such as `layer-gain`, whatever the other gain is."""
        return self.norm + "-gain" * (self.gain != 1.0) + "-exact" * bool(self.prefix)

    def has(self, run: Run) -> bool:
        """Tells whether a run is of this arm."""
        return run.config["norm"] == self.norm and has(run, self.options)


def in_order(value: Any) -> tuple[bool, Any]:
    """The key by which values of an option are sorted: numbers, then names."""
    return isinstance(value, str), value


def has(run: Run, options: Mapping[str, Any]) -> bool:
    """Tells whether a run has these options."""
    return all(run.config.get(name) == value for name, value in options.items())


@dataclass(frozen=True)
class Said:
    """A sentence that a report shows only if it has runs of every norm in `norms`. A name may be a pattern, such as
    `batch*`."""

    text: str
    norms: tuple[str, ...]


def said(parts: str | Sequence[str | Said], norms: Collection[str]) -> str:
    """Joins the sentences that do not name a norm, and those about norms among these."""
    texts = [parts] if isinstance(parts, str) else parts
    return " ".join(part.text if isinstance(part, Said) else part for part in texts
                    if isinstance(part, str) or all(any(fnmatchcase(norm, name) for norm in norms)
                                                    for name in part.norms))  # fmt: skip


def is_named(name: str, norms: Collection[str]) -> bool:
    """Tells whether a row is shown: its name begins with the name of one of these norms, or with no norm's name at
    all."""
    named = [norm for norm, text in NORMS.items() if name == text or name.startswith(f"{text},")]
    return not named or max(named, key=lambda norm: len(NORMS[norm])) in norms
