"""What an audit returns."""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is badly scaled at the start of training."""

    module: str  # its name in the audited module, "" for the audited module itself
    what: str  # what was found, in words
    measured: float
    threshold: float
    fix: str  # what can be done about it

    def __str__(self) -> str:
        return f"{self.module or 'the module'}: {self.what}. {self.fix}"


class Audit(list[Finding]):
    """The findings of an audit. As text it is what they say, and empty where there are none."""

    def __str__(self) -> str:
        return "\n".join(textwrap.fill(str(finding), 80, subsequent_indent="  ") for finding in self)

    __repr__ = __str__
