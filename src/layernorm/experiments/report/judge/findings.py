"""The lines in which a report prints the verdicts on its runs."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.folder import Run
from .claim import SEEDS, Claim
from .decide import decide
from .ruling import capital, counted

RULE = (
    f"The rule: each arm at its best learning rate of a pilot with other seeds, {SEEDS} paired seeds or more, the mean "
    "difference with its 95 % interval. Equal: the interval is inside the margin. Ahead, behind: the difference is not "
    "0 at the level of 5 %, by Holm's procedure over the claims of a trial. docs/claims.md has all claims."
)
"""The sentence below verdicts."""


def findings(claims: Sequence[Claim], runs: Sequence[Run]) -> list[str]:
    """What a report prints: a line for each claim that has two pairs of runs or more, and the rule below them.

    One more line counts the other claims that have runs of both arms.
    """
    known = [ruling for ruling in decide(claims, runs)
             if all(ruling.claim.trial.runs(arm, runs) for arm in ruling.claim.arms)]  # fmt: skip
    lines = [
        f"{ruling.claim.text} Verdict: {ruling.verdict}. {capital(ruling.ran)}. {capital(ruling.found)}."
        for ruling in known
        if len(ruling.pairs) > 1
    ]
    others = len(known) - len(lines)
    if lines:
        lines.append(RULE)
    if others:
        are, their = ("is", "its") if others == 1 else ("are", "their")
        lines.append(
            f"{capital(counted(others, 'claim'))} {are} undecided, as these runs are not {their} trial; `layernorm "
            "claims` says what is missing."
        )
    return lines
