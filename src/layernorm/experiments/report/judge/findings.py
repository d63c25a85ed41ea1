"""The lines in which a report prints the verdicts on its runs."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.folder import Run
from .claim import SEEDS, Claim
from .decide import decide
from .ruling import capital

RULE = (
    f"The rule: each arm at its best learning rate of a pilot with other seeds, {SEEDS} paired seeds or more, the mean "
    "difference with its 95 % interval. Equal: the interval is inside the margin. Ahead, behind: the difference is not "
    "0 at the level of 5 %, by Holm's procedure over the claims of a trial. docs/claims.md has all claims."
)
"""The sentence below verdicts."""


def findings(claims: Sequence[Claim], runs: Sequence[Run]) -> list[str]:
    """What a report prints: a line for each claim that some runs belong to, and the rule below them."""
    known = [claim for claim in claims if all(claim.trial.runs(arm, runs) for arm in claim.arms)]
    lines = [
        f"{ruling.claim.text} Verdict: {ruling.verdict}. {capital(ruling.ran)}. {capital(ruling.found)}."
        for ruling in decide(claims, runs)
        if ruling.claim in known
    ]
    return [*lines, RULE] if lines else []
