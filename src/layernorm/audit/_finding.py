"""What an audit returns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that is badly scaled at the start of training."""

    module: str  # its name in the audited module, "" for the audited module itself
    what: str  # what was found, in words
    measured: float
    threshold: float
    fix: str  # what can be done about it

    def __str__(self) -> str:
        return f"{self.module or 'the module'}: {self.what}. {self.fix}"


class Growth(NamedTuple):
    """Says how the gradient of a recurrent layer's state grows or shrinks over time, in one direction."""

    module: str  # its name and its layer: "encoder", with several layers "encoder, layer 1 reverse"
    steps: int  # that it went back
    factor: float  # how many times as large it then is as the gradient of an output

    @property
    def per_step(self) -> float:
        """The factor of one step, in the geometric mean."""
        return self.factor ** (1 / self.steps)

    def __str__(self) -> str:
        return f"{self.module or 'the module'}: {self.factor:.3g} over {self.steps} steps, {self.per_step:.3g} a step"


class Audit(list[Finding]):
    """The findings of an audit, as a list. Its text is what they say, and empty where there are none.

    ``growth`` has a `Growth` for each recurrent layer and direction, whether or not there is a finding.
    """

    def __init__(self, findings: Iterable[Finding] = (), growth: Sequence[Growth] = ()) -> None:
        super().__init__(findings)
        self.growth = list(growth)

    def __str__(self) -> str:
        lines = (str(finding).replace('": ', '":\xa0') for finding in self)  # {"gain_hh": 0.3} stays on one line
        return "\n".join(textwrap.fill(line, 80, subsequent_indent="  ") for line in lines).replace("\xa0", " ")

    __repr__ = __str__
